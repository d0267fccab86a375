# Entries from user mode and back.
#
# While a program runs, the processor's kernel stack pointer (TSS.RSP0) is the *end of its UserContext*: the
# hardware pushes its frame straight into the last five words of the context, and the rest follows by pushes. So a
# trap copies nothing, and heddle_enter_user returns to its caller like a function.
#
# Syntax: AT&T. CONTEXT_* and CPU_* are offsets from context.rs and local.rs.

.macro PUSH_REGISTERS
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %rax
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
.endm

.macro POP_REGISTERS
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rax
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
.endm

.pushsection .text.trap, "ax", @progbits

# heddle_enter_user(context: *mut UserContext): runs the program until its next trap.
.global heddle_enter_user, heddle_site_enter
.balign 16
heddle_enter_user:
heddle_site_enter:                      # five bytes for a jump to heddle_enter_direct, in machines of that kind
    pushq %rbp
    movq %rsp, %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, %gs:{CPU_KERNEL_SP}
    leaq {CONTEXT_SIZE}(%rdi), %rax
    movq %rax, %gs:{CPU_RSP0}
.global heddle_site_exit
heddle_site_exit:
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00  # `call heddle_release_branches` where that is needed (mitigations.rs)
    # sysret loads rip from rcx and rflags from r11: usable exactly when the context agrees. A rip outside the
    # lower half must go the other way, because sysret would fault in the kernel.
    movq {CONTEXT_IP}(%rdi), %rcx
    cmpq %rcx, {CONTEXT_RCX}(%rdi)
    jne 1f
    movq {CONTEXT_FLAGS}(%rdi), %r11
    cmpq %r11, {CONTEXT_R11}(%rdi)
    jne 1f
    # sysret would trap before the program's next instruction, and cannot load the resume flag.
    testl $0x10100, %r11d
    jnz 1f
    movq %rcx, %rax
    shrq $47, %rax
    jnz 1f
    leaq {CONTEXT_R15}(%rdi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    addq $8, %rsp                       # r11
    popq %r10
    popq %r9
    popq %r8
    popq %rax
    addq $8, %rsp                       # rcx
    popq %rdx
    popq %rsi
    popq %rdi
    movq ({CONTEXT_SP} - {CONTEXT_VECTOR})(%rsp), %rsp
.global heddle_site_clear_sysret
heddle_site_clear_sysret:
    .byte 0x0f, 0x1f, 0x80, 0, 0, 0, 0  # `verw`, which empties buffers, likewise
    swapgs
    sysretq
1:  leaq {CONTEXT_R15}(%rdi), %rsp
    POP_REGISTERS
    addq $16, %rsp                      # vector, error
.global heddle_site_clear_iret
heddle_site_clear_iret:
    .byte 0x0f, 0x1f, 0x80, 0, 0, 0, 0  # as above
    swapgs
    iretq

# The target of `syscall`: builds the same frame as a hardware trap, with the call number in the error slot.
.global heddle_syscall_entry
.type heddle_syscall_entry, @function
.balign 16
heddle_syscall_entry:
    swapgs
    movq %rsp, %gs:{CPU_USER_SP}
    movq %gs:{CPU_RSP0}, %rsp
    pushq ${USER_DATA}
    pushq %gs:{CPU_USER_SP}
    pushq %r11
    pushq ${USER_CODE}
    pushq %rcx
    pushq %rax
    pushq ${VECTOR_SYSCALL}
    PUSH_REGISTERS
leave_user:
    cld
    movq %gs:{CPU_KERNEL_SP}, %rsp
.global heddle_site_entry
heddle_site_entry:
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00  # `call heddle_restrain_branches`, before the first indirect one
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    retq

.balign 16
trap_common:
    testb $3, 24(%rsp)                  # the code segment's privilege level
    jz 1f
    swapgs
.global heddle_site_fence_trap
heddle_site_fence_trap:
    .byte 0x0f, 0x1f, 0x00              # `lfence`: nothing runs ahead with the program's GS base
.global heddle_trap_smap_site
heddle_trap_smap_site:
    .byte 0x0f, 0x1f, 0x00              # `clac` where SMAP is: a program may have set the flag
    PUSH_REGISTERS
    jmp leave_user
1:  # From kernel mode: an interrupt at an explicit point, a fault of a user copy, or a bug.
.global heddle_site_fence_kernel
heddle_site_fence_kernel:
    .byte 0x0f, 0x1f, 0x00              # as above, where the branch was mispredicted
kernel_trap:
    PUSH_REGISTERS
    cld
    movq %rsp, %rdi
    pushq 136(%rsp)                     # rip and rbp as a frame, for backtraces
    pushq %rbp
    movq %rsp, %rbp
    andq $-16, %rsp
    callq heddle_kernel_trap
    leaq 16(%rbp), %rsp
    POP_REGISTERS
    addq $16, %rsp
    iretq

# What the sites call. Both keep all registers but rax, rcx and rdx, and run on the kernel's stack.
.balign 16
.global heddle_restrain_branches
heddle_restrain_branches:
    movl $0x48, %ecx                    # SPEC_CTRL
    movl $1, %eax                       # IBRS
    xorl %edx, %edx
    wrmsr
    retq

.balign 16
.global heddle_release_branches
heddle_release_branches:
    movl $0x48, %ecx
    xorl %eax, %eax
    xorl %edx, %edx
    wrmsr
    retq

# heddle_fill_returns(): 32 entries of the kernel's own in the predictor of returns, whatever was there before.
.balign 16
.global heddle_fill_returns
heddle_fill_returns:
    movl $16, %ecx
1:  callq 3f
2:  pause                               # never reached but ahead of its turn
    lfence
    jmp 2b
3:  callq 5f
4:  pause
    lfence
    jmp 4b
5:  addq $16, %rsp
    decl %ecx
    jnz 1b
    lfence
    retq

# Debug traps, on a stack of their own: a program can have one strike at the first instruction of the `syscall` entry,
# where the stack is still its own.
.global heddle_debug_entry
.balign 16
heddle_debug_entry:
    testb $3, 8(%rsp)                   # the code segment's privilege level
    jz 1f
    swapgs
.global heddle_site_fence_debug
heddle_site_fence_debug:
    .byte 0x0f, 0x1f, 0x00              # as above
.global heddle_debug_smap_site
heddle_debug_smap_site:
    .byte 0x0f, 0x1f, 0x00              # as above
    # The frame moves to where the others are pushed.
    pushq %rdi
    movq %gs:{CPU_RSP0}, %rdi
    pushq %rsi
    movq 16(%rsp), %rsi                 # rip
    movq %rsi, -40(%rdi)
    movq 24(%rsp), %rsi                 # cs
    movq %rsi, -32(%rdi)
    movq 32(%rsp), %rsi                 # rflags
    movq %rsi, -24(%rdi)
    movq 40(%rsp), %rsi                 # rsp
    movq %rsi, -16(%rdi)
    movq 48(%rsp), %rsi                 # ss
    movq %rsi, -8(%rdi)
    popq %rsi
    leaq -40(%rdi), %rdi
    xchgq %rdi, (%rsp)
    popq %rsp
    pushq $0
    pushq $1
    PUSH_REGISTERS
    jmp leave_user
1:
debug_in_kernel:
    # The kernel has touched what a program's debugger watches: nobody is told.
    pushq %rax
    movl $0xffff0ff0, %eax
    movq %rax, %dr6
    andq $~0x100, 24(%rsp)
    popq %rax
    iretq

# One entry per vector, 16 bytes apart.
.global heddle_trap_entries
.balign 16
heddle_trap_entries:
.set vector, 0
.rept 256
    .balign 16
    .if (vector == 8) || (vector == 10) || (vector == 11) || (vector == 12) || (vector == 13) || (vector == 14) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    pushq $0
    .endif
    pushq $vector
    jmp trap_common
    .set vector, vector + 1
.endr
.popsection
