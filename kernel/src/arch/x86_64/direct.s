# Calls in place of system calls: programs run at the kernel's privilege level (direct.rs says why and how).
#
# Nothing tells a program's traps from the kernel's by the privilege level here, and the processor changes the stack
# only where a gate says so. Each gate names one stack of the task state segment, TRAP_STACK, which is the end of the
# UserContext while a program runs and a few words of the CPU's own (CPU_TRAP_AREA) while the kernel does. So a
# frame's address says what was interrupted, and nothing is ever pushed onto a program's stack: contexts are in the
# direct map, whose addresses have bit 46 clear, and the areas in the kernel's image, where it is set.
#
# Syntax: AT&T. The macros are trap.s's.

.set DIRECT_MAP_BIT, 46
.set FLAG_INTERRUPTS, 0x200
.set FLAGS_OF_STEPS, 0x10100            # trap and resume

.pushsection .text.direct, "ax", @progbits

# heddle_enter_direct(context: *mut UserContext): runs the program until its next trap. heddle_enter_user jumps here.
.global heddle_enter_direct
.balign 16
heddle_enter_direct:
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
    movq %rax, %gs:{CPU_TRAP_STACK}
    # A program that has made a call is returned to by a jump, as heddle_enter_user does it by sysret.
    movq {CONTEXT_IP}(%rdi), %rcx
    cmpq %rcx, {CONTEXT_RCX}(%rdi)
    jne 1f
    movq {CONTEXT_FLAGS}(%rdi), %r11
    cmpq %r11, {CONTEXT_R11}(%rdi)
    jne 1f
    testl $FLAGS_OF_STEPS, %r11d
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
    pushq %r11
    andl $~FLAG_INTERRUPTS, (%rsp)
    popfq
    movq ({CONTEXT_SP} - {CONTEXT_VECTOR})(%rsp), %rsp
    swapgs
    sti                                 # takes effect after the jump
    jmpq *%rcx
1:  # No program begins in the kernel, whatever it has asked for.
    movq {CONTEXT_IP}(%rdi), %rax
    shrq $47, %rax
    jnz 2f
    pushq $2                            # a program may have come with the flag for nested tasks, which iretq refuses
    popfq
    movq ${KERNEL_CODE}, {CONTEXT_CS}(%rdi)
    movq ${KERNEL_DATA}, {CONTEXT_SS}(%rdi)
    leaq {CONTEXT_R15}(%rdi), %rsp
    POP_REGISTERS
    addq $16, %rsp                      # vector, error
    swapgs
    iretq
2:  movq ${VECTOR_PROTECTION}, {CONTEXT_VECTOR}(%rdi)
    movq $0, ({CONTEXT_VECTOR} + 8)(%rdi)
    jmp leave_program

# A call of a place that was patched: rcx is the offset of its entry in the table of the program's places. Until the
# interrupts are off, the registers and the stack are as the program left them, but for rcx, which a system call
# changes.
.global heddle_direct_stubs
.balign 16
heddle_direct_stubs:
.set place, 0
.rept {PLACES_MOVE}
    .balign 16
    movl ${PLACE_BYTES} * place, %ecx
    jmp direct_call
    .set place, place + 1
.endr
.rept {PLACES_PADDING}
    .balign 16
    movl ${PLACE_BYTES} * place, %ecx
    jmp direct_call_by_register
    .set place, place + 1
.endr
.rept {PLACES_NINTH}
    .balign 16
    movl ${PLACE_BYTES} * place, %ecx
    movq 8(%rsp), %r9
    jmp direct_call_by_register
    .set place, place + 1
.endr

.macro BEGIN_CALL
    swapgs
    movq %rsp, %gs:{CPU_USER_SP}
    movq %gs:{CPU_RSP0}, %rsp
    pushq ${USER_DATA}
    pushq %gs:{CPU_USER_SP}
    pushfq
    orl $FLAG_INTERRUPTS, (%rsp)
    movq (%rsp), %r11
    pushq ${USER_CODE}
    addq %gs:{CPU_CALL_PLACES}, %rcx
.endm

# The number is in its register.
.balign 16
direct_call_by_register:
    cli
    BEGIN_CALL
    movq (%rcx), %rcx
    pushq %rcx
    pushq %rax
    pushq ${VECTOR_SYSCALL}
    PUSH_REGISTERS
    jmp leave_program

# The number is in the table.
.balign 16
direct_call:
    cli
.global heddle_direct_call_begun
heddle_direct_call_begun:
    BEGIN_CALL
    movl 8(%rcx), %eax
    movq (%rcx), %rcx
    pushq %rcx
    pushq %rax
    pushq ${VECTOR_SYSCALL}
    PUSH_REGISTERS
    jmp leave_program

# The target of `syscall` where it is not patched.
.global heddle_direct_syscall_entry
.balign 16
heddle_direct_syscall_entry:
    swapgs
    movq %rsp, %gs:{CPU_USER_SP}
    movq %gs:{CPU_RSP0}, %rsp
    pushq ${USER_DATA}
    pushq %gs:{CPU_USER_SP}
    pushq %r11
    pushq ${USER_CODE}
    pushq %rcx
    pushq %rax
    pushq ${VECTOR_INSTRUCTION}
    PUSH_REGISTERS
leave_program:
    movq %gs:{CPU_TRAP_AREA}, %rax
    movq %rax, %gs:{CPU_TRAP_STACK}
    cld
    movq %gs:{CPU_KERNEL_SP}, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    retq

.balign 16
direct_trap_common:
    btq $DIRECT_MAP_BIT, %rsp
    jc 1f
    swapgs
leave_program_by_trap:
    PUSH_REGISTERS
    movq ${USER_CODE}, ({CONTEXT_CS} - {CONTEXT_R15})(%rsp)
    movq ${USER_DATA}, ({CONTEXT_SS} - {CONTEXT_R15})(%rsp)
    leaq -{CONTEXT_R15}(%rsp), %rdi
    movq %gs:{CPU_TRAP_AREA}, %rax
    movq %rax, %gs:{CPU_TRAP_STACK}
    cld
    movq %gs:{CPU_KERNEL_SP}, %rsp
    subq $8, %rsp
    callq heddle_direct_trapped
    addq $8, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    retq
1:  # From the kernel: the frame moves to the stack that was interrupted, where heddle_kernel_trap expects it.
    pushq %rax
    pushq %rcx
    movq 56(%rsp), %rax                 # rsp
    movq %gs:{CPU_TRAP_AREA}, %rcx
    subq %rax, %rcx
    cmpq ${TRAP_AREA_BYTES}, %rcx
    jbe 2f
    andq $-16, %rax
    movq 64(%rsp), %rcx                 # ss
    movq %rcx, -8(%rax)
    movq 56(%rsp), %rcx
    movq %rcx, -16(%rax)
    movq 48(%rsp), %rcx                 # rflags
    movq %rcx, -24(%rax)
    movq 40(%rsp), %rcx                 # cs
    movq %rcx, -32(%rax)
    movq 32(%rsp), %rcx                 # rip
    movq %rcx, -40(%rax)
    movq 24(%rsp), %rcx                 # error
    movq %rcx, -48(%rax)
    movq 16(%rsp), %rcx                 # vector
    movq %rcx, -56(%rax)
    movq 8(%rsp), %rcx                  # rax
    movq %rcx, -64(%rax)
    popq %rcx
    leaq -64(%rax), %rsp
    popq %rax
    jmp kernel_trap
2:  # That move has faulted: the stack has overflowed.
    movq 32(%rsp), %rcx                 # rip
    movq %gs:{CPU_FATAL_STACK}, %rsp
    pushq ${KERNEL_DATA}
    pushq %rax
    pushfq
    pushq ${KERNEL_CODE}
    pushq %rcx
    pushq $0
    pushq $8                            # as it would end elsewhere
    jmp kernel_trap

# What may strike anywhere: NMI, double fault, machine check, 16 bytes apart, on a stack of their own. All end the
# machine.
.global heddle_direct_fatal_entries
.balign 16
heddle_direct_fatal_entries:
    pushq $0
    pushq $2
    jmp fatal
.balign 16
    pushq $8
    jmp fatal
.balign 16
    pushq $0
    pushq $18
fatal:
    cmpq $0, 16(%rsp)                   # rip
    js 1f
    swapgs
1:  jmp kernel_trap

# Debug traps, on the stack that they have in ordinary machines too. One at a stub is a step into a call.
.global heddle_direct_debug_entry
.balign 16
heddle_direct_debug_entry:
    cmpq $0, (%rsp)                     # rip
    jns 1f
    pushq %rax
    leaq heddle_direct_stubs(%rip), %rax
    subq 8(%rsp), %rax
    negq %rax
    cmpq $(heddle_direct_call_begun - heddle_direct_stubs), %rax
    popq %rax
    jae debug_in_kernel
1:  swapgs
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
    jmp leave_program_by_trap

# One entry per vector, 16 bytes apart.
.global heddle_direct_trap_entries
.balign 16
heddle_direct_trap_entries:
.set vector, 0
.rept 256
    .balign 16
    .if (vector == 8) || (vector == 10) || (vector == 11) || (vector == 12) || (vector == 13) || (vector == 14) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    pushq $0
    .endif
    pushq $vector
    jmp direct_trap_common
    .set vector, vector + 1
.endr
.popsection

# What a patched place jumps through: see direct.rs.
.pushsection .rodata.direct, "a", @progbits
.global heddle_direct_window
.balign 2048
heddle_direct_window:
.set place, 0
.rept {PLACES_MOVE} + {PLACES_PADDING} + {PLACES_NINTH}
    .quad heddle_direct_stubs + 16 * place
    .set place, place + 1
.endr
.popsection
