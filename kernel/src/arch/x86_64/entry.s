# PVH entry: 32-bit protected mode, paging off, %ebx = physical address of the start info. Builds the boot page
# tables and enters heddle_start in long mode on the boot processor's stack.
#
# Syntax: AT&T. Everything before "movabs" runs at physical addresses, hence P().

.set KERNEL_BASE, 0xffffffff80000000

# CPUID 0x80000001, EDX.
.set EXTENDED_1GIB_PAGES, 1 << 26

.pushsection .note.heddle, "a", @note
    .balign 4
    .long 4, 4, 18                      # name and descriptor length, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long heddle_pvh_entry - KERNEL_BASE
.popsection

.pushsection .bss.stack, "aw", @nobits
    .balign 4096
.global heddle_boot_pml4
heddle_boot_pml4:        .skip 4096
.global heddle_boot_identity_pdpt
heddle_boot_identity_pdpt: .skip 4096
.global heddle_boot_direct_pdpt
heddle_boot_direct_pdpt: .skip 4096
.global heddle_boot_kernel_pdpt
heddle_boot_kernel_pdpt: .skip 4096
boot_kernel_pd:          .skip 4096
boot_direct_pds:         .skip 4 * 4096
# The lowest page is unmapped once the kernel has its own page tables: an overflow faults.
.global heddle_boot_stack
heddle_boot_stack:       .skip 4096 + 65536
.global heddle_boot_stack_top
heddle_boot_stack_top:
.popsection

.pushsection .bss.entry, "aw", @nobits
    .balign 8
.global heddle_entry_counter            # the time-stamp counter at the kernel's first instructions
heddle_entry_counter:    .skip 8
.popsection

.pushsection .boot.text, "ax", @progbits
.code32
.global heddle_pvh_entry
heddle_pvh_entry:
    cld
    movl $(heddle_boot_stack_top - KERNEL_BASE), %esp
    movl %ebx, %edi                     # kept for heddle_start

    call check_processor
    rdtsc
    movl %eax, (heddle_entry_counter - KERNEL_BASE)
    movl %edx, (heddle_entry_counter - KERNEL_BASE + 4)

    movl $(heddle_boot_identity_pdpt - KERNEL_BASE + 3), (heddle_boot_pml4 - KERNEL_BASE)
    movl $(heddle_boot_direct_pdpt - KERNEL_BASE + 3), (heddle_boot_pml4 - KERNEL_BASE + 256 * 8)
    movl $(heddle_boot_kernel_pdpt - KERNEL_BASE + 3), (heddle_boot_pml4 - KERNEL_BASE + 511 * 8)
    # The identity map is that of the kernel's image.
    movl $(boot_kernel_pd - KERNEL_BASE + 3), (heddle_boot_identity_pdpt - KERNEL_BASE)
    movl $(boot_kernel_pd - KERNEL_BASE + 3), (heddle_boot_kernel_pdpt - KERNEL_BASE + 510 * 8)

    # The direct map, writable, global, not executable: 512 pages of 1 GiB where the processor has them.
    movl $0x80000001, %eax
    cpuid
    testl $EXTENDED_1GIB_PAGES, %edx
    jz 2f
    xorl %ecx, %ecx
1:  movl %ecx, %eax
    shll $30, %eax
    orl $0x183, %eax
    movl %eax, (heddle_boot_direct_pdpt - KERNEL_BASE)(,%ecx,8)
    movl %ecx, %eax
    shrl $2, %eax
    orl $0x80000000, %eax
    movl %eax, (heddle_boot_direct_pdpt - KERNEL_BASE + 4)(,%ecx,8)
    incl %ecx
    cmpl $512, %ecx
    jne 1b
    jmp 5f

    # Otherwise 4 GiB in pages of 2 MiB; paging.rs maps the memory above.
2:  xorl %ecx, %ecx
3:  movl %ecx, %eax
    shll $21, %eax
    orl $0x183, %eax
    movl %eax, (boot_direct_pds - KERNEL_BASE)(,%ecx,8)
    movl $0x80000000, (boot_direct_pds - KERNEL_BASE + 4)(,%ecx,8)
    incl %ecx
    cmpl $4 * 512, %ecx
    jne 3b
    xorl %ecx, %ecx
    movl $(boot_direct_pds - KERNEL_BASE + 3), %eax
4:  movl %eax, (heddle_boot_direct_pdpt - KERNEL_BASE)(,%ecx,8)
    addl $4096, %eax
    incl %ecx
    cmpl $4, %ecx
    jne 4b

    # The kernel's image, until heddle_start maps it page by page: 64 pages of 2 MiB.
5:  xorl %ecx, %ecx
6:  movl %ecx, %eax
    shll $21, %eax
    orl $0x83, %eax
    movl %eax, (boot_kernel_pd - KERNEL_BASE)(,%ecx,8)
    incl %ecx
    cmpl $64, %ecx
    jne 6b

    movl $(heddle_boot_pml4 - KERNEL_BASE), %edx
    call heddle_long_mode

.code64
    movabsq $heddle_boot_stack_top, %rsp
    xorl %ebp, %ebp
    movl %edi, %edi
    movabsq $heddle_start, %rax
    pushq %rbp
    jmpq *%rax

# Ends the machine with a message that names the feature, if the processor lacks one that the kernel is built on.
# Keeps %edi.
.code32
check_processor:
    xorl %eax, %eax
    cpuid
    testl %eax, %eax
    jz 1f
    movl $1, %eax
    cpuid
    movl $(basic_features - KERNEL_BASE), %esi
    call check_features
1:  movl $0x80000000, %eax
    cpuid
    xorl %edx, %edx                     # without the leaf, none of its features
    cmpl $0x80000001, %eax
    jb 2f
    movl $0x80000001, %eax
    cpuid
2:  movl $(extended_features - KERNEL_BASE), %esi
    # Falls through, and returns from there.

# Compares the features in %edx with the table at %esi.
check_features:
    movl (%esi), %eax
    testl %eax, %eax
    jz 1f
    testl %eax, %edx
    jz lacks
    addl $FEATURE_SIZE, %esi
    jmp check_features
1:  ret

# Names the feature whose entry is at %esi on the debug console, and ends the machine.
lacks:
    leal 4(%esi), %ebp
    movl $(lacks_before - KERNEL_BASE), %esi
    call write_text
    movl %ebp, %esi
    call write_text
    movl $(lacks_after - KERNEL_BASE), %esi
    call write_text
    movw $0x501, %dx
    movb $0x11, %al
    outb %al, %dx
1:  hlt
    jmp 1b

# Writes the text at %esi to the debug console.
write_text:
    movw $0xe9, %dx
1:  lodsb
    testb %al, %al
    jz 2f
    outb %al, %dx
    jmp 1b
2:  ret

lacks_before:
    .asciz "heddle-panic: message this processor lacks the feature "
lacks_after:
    .asciz "\nheddle-panic: end\n"

# Tables of required features: the bit in EDX, and the name as /proc/cpuinfo has it. A bit of zero ends a table.
.set FEATURE_SIZE, 32
.macro feature bit, name
    .long 1 << \bit
    .asciz "\name"
    .balign FEATURE_SIZE, 0
.endm

.balign FEATURE_SIZE
basic_features:                         # CPUID 1
    feature 4, "tsc"
    feature 5, "msr"
    feature 6, "pae"
    feature 8, "cx8"
    feature 9, "apic"
    feature 15, "cmov"
    feature 24, "fxsr"
    feature 25, "sse"
    feature 26, "sse2"
    .long 0
.balign FEATURE_SIZE
extended_features:                      # CPUID 0x80000001
    feature 29, "lm (64-bit mode)"
    feature 20, "nx (no-execute pages)"
    feature 11, "syscall"
    .long 0

# Switches a processor from 32-bit protected mode without paging to long mode with the page table at %edx, and
# returns to its caller as 64-bit code. Keeps %edi and %esp.
.code32
.global heddle_long_mode
heddle_long_mode:
    movl %cr4, %eax
    orl $0x630, %eax                    # PSE, PAE, OSFXSR, OSXMMEXCPT; MCE is left off
    movl %eax, %cr4
    movl %edx, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x901, %eax                    # SCE, LME, NXE
    wrmsr
    movl $0x80050033, %eax              # PG, AM, WP, NE, ET, MP, PE
    movl %eax, %cr0
    popl %esi
    lgdt (boot_gdt_pointer - KERNEL_BASE)
    pushl $0x08
    pushl %esi
    lret

.balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff            # 64-bit code
    .quad 0x00cf92000000ffff            # data
boot_gdt_pointer:
    .word . - boot_gdt - 1
    .long boot_gdt - KERNEL_BASE
.code64
.popsection
