# PVH entry: 32-bit protected mode, paging off, %ebx = physical address of the start info. Builds the boot page
# tables and enters heddle_start in long mode on the boot processor's stack.
#
# Syntax: AT&T. Everything before "movabs" runs at physical addresses, hence P().

.set KERNEL_BASE, 0xffffffff80000000

# CPUID 1, EDX: TSC, MSR, PAE, CX8, APIC, CMOV, FXSR, SSE, SSE2.
.set BASIC_REQUIRED, 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 15 | 1 << 24 | 1 << 25 | 1 << 26
# CPUID 0x80000001, EDX.
.set EXTENDED_NO_EXECUTE, 1 << 20
.set EXTENDED_1GIB_PAGES, 1 << 26
.set EXTENDED_LONG_MODE, 1 << 29

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

# Ends the machine with a message if the processor lacks a feature that the kernel is built on. Keeps %edi.
.code32
check_processor:
    xorl %eax, %eax
    cpuid
    testl %eax, %eax
    jz 1f
    movl $1, %eax
    cpuid
    notl %edx
    movl $(missing_basic - KERNEL_BASE), %esi
    testl $BASIC_REQUIRED, %edx
    jnz lacks
1:  movl $0x80000000, %eax
    cpuid
    movl $(missing_long_mode - KERNEL_BASE), %esi
    cmpl $0x80000001, %eax
    jb lacks
    movl $0x80000001, %eax
    cpuid
    testl $EXTENDED_LONG_MODE, %edx
    jz lacks
    movl $(missing_no_execute - KERNEL_BASE), %esi
    testl $EXTENDED_NO_EXECUTE, %edx
    jz lacks
    ret

# Writes the text at %esi to the debug console and ends the machine.
lacks:
    movw $0xe9, %dx
    cld
1:  lodsb
    testb %al, %al
    jz 2f
    outb %al, %dx
    jmp 1b
2:  movw $0x501, %dx
    movb $0x11, %al
    outb %al, %dx
3:  hlt
    jmp 3b

missing_basic:
    .asciz "heddle-panic: message this processor lacks one of TSC, MSR, PAE, CX8, APIC, CMOV, FXSR, SSE, SSE2\nheddle-panic: end\n"
missing_long_mode:
    .asciz "heddle-panic: message this processor lacks 64-bit mode (lm)\nheddle-panic: end\n"
missing_no_execute:
    .asciz "heddle-panic: message this processor lacks pages that are not executable (nx)\nheddle-panic: end\n"

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
    movl $0x80010033, %eax              # PG, WP, NE, ET, MP, PE
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
