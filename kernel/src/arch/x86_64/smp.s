# How the other processors come up: real mode at the trampoline's copy below 1 MiB, then the way of entry.s.
# One processor at a time is on this way, so the variables and the scratch stack below are enough.
#
# Syntax: AT&T.

.set KERNEL_BASE, 0xffffffff80000000
.set TRAMPOLINE, 0x8000                 # smp.rs copies it there

.pushsection .rodata.trampoline, "a", @progbits
.code16
.global heddle_trampoline
heddle_trampoline:
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl TRAMPOLINE + (trampoline_gdt_pointer - heddle_trampoline)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x08, $(TRAMPOLINE + (trampoline_protected - heddle_trampoline))
.code32
trampoline_protected:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $(ap_entry - KERNEL_BASE), %eax
    jmpl *%eax
.balign 8
trampoline_gdt:
    .quad 0
    .quad 0x00cf9a000000ffff            # 32-bit code
    .quad 0x00cf92000000ffff            # data
trampoline_gdt_pointer:
    .word . - trampoline_gdt - 1
    .long TRAMPOLINE + (trampoline_gdt - heddle_trampoline)
.global heddle_trampoline_end
heddle_trampoline_end:
.code64
.popsection

.pushsection .bss.stack, "aw", @nobits
    .balign 16
    .skip 64
ap_scratch_stack:
.popsection

.pushsection .data.smp, "aw", @progbits
.balign 8
# Number and stack of the processor that is coming up.
.global heddle_ap_number
heddle_ap_number: .quad 0
.global heddle_ap_stack
heddle_ap_stack: .quad 0
.popsection

.pushsection .boot.text, "ax", @progbits
.code32
ap_entry:
    movl $(ap_scratch_stack - KERNEL_BASE), %esp
    movl $(heddle_boot_pml4 - KERNEL_BASE), %edx
    call heddle_long_mode
.code64
    movabsq $heddle_ap_stack, %rax
    movq (%rax), %rsp
    movabsq $heddle_ap_number, %rax
    movq (%rax), %rdi
    xorl %ebp, %ebp
    movabsq $heddle_ap_start, %rax
    pushq %rbp
    jmpq *%rax
.popsection
