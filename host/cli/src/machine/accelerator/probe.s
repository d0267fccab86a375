# A machine of its own that tells how fast this host's KVM runs a kernel: an ELF file with a PVH entry, complete, in
# the tool's constants. It writes S, counts down, and writes F; opens and closes user pages (stac, clac) and writes A;
# saves and loads the extended registers (xsave, xrstor) and writes X; and ends the machine. It passes over what the
# processor does not have, and over stac and clac if the command line starts with a minus sign. See mod.rs.
#
# Syntax: AT&T.

.set PROBE_BASE, 0x100000
.set PROBE_TURNS, 2000000

.pushsection .rodata.heddle_probe, "a", @progbits
.balign 16
.global heddle_probe_start
heddle_probe_start:
    .byte 0x7f, 'E', 'L', 'F', 2, 1, 1, 0
    .skip 8
    .short 2, 62                        # ET_EXEC, EM_X86_64
    .long 1
    .quad PROBE_BASE + probe_entry - heddle_probe_start
    .quad 64, 0                         # program headers follow; no sections
    .long 0
    .short 64, 56, 2, 64, 0, 0

    .long 1, 5                          # PT_LOAD, readable and executable: the whole file
    .quad 0, PROBE_BASE, PROBE_BASE
    .quad heddle_probe_end - heddle_probe_start, heddle_probe_end - heddle_probe_start, 4096

    .long 4, 4                          # PT_NOTE
    .quad probe_note - heddle_probe_start
    .quad PROBE_BASE + probe_note - heddle_probe_start, PROBE_BASE + probe_note - heddle_probe_start
    .quad 20, 20, 4

    .balign 4
probe_note:
    .long 4, 4, 18                      # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long PROBE_BASE + probe_entry - heddle_probe_start

.code32
probe_entry:
    movl 24(%ebx), %edi                 # the command line, of the start information
    movl $0x180000, %esp
    movw $0xe9, %dx
    movb $'S', %al
    outb %al, %dx
    movl $PROBE_TURNS, %ecx
1:  decl %ecx
    jnz 1b
    movb $'F', %al
    outb %al, %dx

    xorl %eax, %eax
    cpuid
    cmpl $7, %eax
    jb 2f
    cmpb $'-', (%edi)
    je 2f
    movl $7, %eax
    xorl %ecx, %ecx
    cpuid
    testl $1 << 20, %ebx
    jz 2f
    stac
    clac
2:  movw $0xe9, %dx
    movb $'A', %al
    outb %al, %dx

    movl $1, %eax
    cpuid
    testl $1 << 26, %ecx
    jz 3f
    movl %cr4, %eax
    orl $1 << 18 | 1 << 9, %eax         # OSXSAVE, OSFXSR
    movl %eax, %cr4
    xorl %ecx, %ecx
    xorl %edx, %edx
    movl $3, %eax                       # x87 and SSE
    xsetbv
    fninit
    movl $0x200000, %esi                # memory of the machine that is zero
    xsave (%esi)
    xrstor (%esi)
3:  movw $0xe9, %dx
    movb $'X', %al
    outb %al, %dx
    movw $0x501, %dx
    movb $0x10, %al
    outb %al, %dx
4:  hlt
    jmp 4b
.code64
.global heddle_probe_end
heddle_probe_end:
.popsection
