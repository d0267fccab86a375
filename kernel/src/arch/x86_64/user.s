# Copies between kernel and user memory. A fault inside one of them continues at the address that the table names
# for it. Eight bytes at a time, and `rep movsb` only where the processor says that it is fast (QEMU's emulator interprets
# it byte by byte); string instructions only where there is enough to make up for their start.
#
# Syntax: AT&T.

.macro FIXUP from, to, target
    .pushsection .rodata.fixup, "a", @progbits
    .quad \from, \to, \target
    .popsection
.endm

# Where SMAP is, user memory may be touched only between `stac` and `clac`. Both are made of these three-byte nops when
# the processor has them (descriptor.rs).
.macro SMAP_SITE opens
771: .byte 0x0f, 0x1f, 0x00
    .pushsection .rodata.smap, "a", @progbits
    .quad 771b, \opens
    .popsection
.endm

.pushsection .rodata.fixup, "a", @progbits
.balign 8
.global heddle_fixups
heddle_fixups:
.popsection

.pushsection .rodata.smap, "a", @progbits
.balign 8
.global heddle_smap_sites
heddle_smap_sites:
.popsection

.pushsection .text.user, "ax", @progbits

# heddle_user_copy(to: rdi, from: rsi, length: rdx) -> rax: how many bytes were not copied.
.global heddle_user_copy
.balign 16
heddle_user_copy:
    SMAP_SITE 1
    cmpq $256, %rdx
    jae 7f
    movq %rdx, %rcx
    shrq $6, %rcx
    jz 2f
1:  movq (%rsi), %rax
    movq 8(%rsi), %r8
    movq 16(%rsi), %r9
    movq 24(%rsi), %r10
    movq %rax, (%rdi)
    movq %r8, 8(%rdi)
    movq %r9, 16(%rdi)
    movq %r10, 24(%rdi)
    movq 32(%rsi), %rax
    movq 40(%rsi), %r8
    movq 48(%rsi), %r9
    movq 56(%rsi), %r10
    movq %rax, 32(%rdi)
    movq %r8, 40(%rdi)
    movq %r9, 48(%rdi)
    movq %r10, 56(%rdi)
    addq $64, %rsi
    addq $64, %rdi
    subq $64, %rdx
    decq %rcx
    jnz 1b
2:  cmpq $8, %rdx
    jb 4f
3:  movq (%rsi), %rax
    movq %rax, (%rdi)
    addq $8, %rsi
    addq $8, %rdi
    subq $8, %rdx
    cmpq $8, %rdx
    jae 3b
4:  testq %rdx, %rdx                    # after a fault above: up to the byte that faults
    jz 6f
5:  movb (%rsi), %al
    movb %al, (%rdi)
    incq %rsi
    incq %rdi
    decq %rdx
    jnz 5b
6:  movq %rdx, %rax
    SMAP_SITE 0
    retq
7:
.global heddle_site_copy
heddle_site_copy:
    .byte 0xeb, 0x00                    # `jmp 11f` where the processor copies bytes as fast as words
    movq %rdx, %rcx
    shrq $3, %rcx
    andl $7, %edx
8:  rep movsq
9:  jmp 4b
10: leaq (%rdx, %rcx, 8), %rdx
    jmp 4b
.global heddle_copy_bytes
heddle_copy_bytes:
11: movq %rdx, %rcx
12: rep movsb
13: movq %rcx, %rdx                     # after a fault: what is left, of which the first byte faults again
    jmp 6b
    FIXUP 1b, 4b, 4b
    FIXUP 4b, 6b, 6b
    FIXUP 8b, 9b, 10b
    FIXUP 12b, 13b, 13b

# heddle_user_clear(to: rdi, length: rsi) -> rax: how many bytes were not cleared.
.global heddle_user_clear
.balign 16
heddle_user_clear:
    SMAP_SITE 1
    xorl %eax, %eax
    movq %rsi, %rcx
    shrq $3, %rcx
    andl $7, %esi
1:  rep stosq
2:  testq %rsi, %rsi
    jz 4f
3:  movb %al, (%rdi)
    incq %rdi
    decq %rsi
    jnz 3b
4:  movq %rsi, %rax
    SMAP_SITE 0
    retq
5:  leaq (%rsi, %rcx, 8), %rsi
    jmp 2b
    FIXUP 1b, 2b, 5b
    FIXUP 2b, 4b, 4b

# heddle_read_register(number: edi, to: rsi) -> rax: 0, or 1 if the processor has no such register.
.global heddle_read_register
.balign 16
heddle_read_register:
    movl %edi, %ecx
1:  rdmsr
2:  movl %eax, (%rsi)
    movl %edx, 4(%rsi)
    xorl %eax, %eax
    retq
3:  movl $1, %eax
    retq
    FIXUP 1b, 2b, 3b

# heddle_write_register(number: edi, value: rsi) -> rax: 0, or 1 if the processor refuses.
.global heddle_write_register
.balign 16
heddle_write_register:
    movl %edi, %ecx
    movl %esi, %eax
    movq %rsi, %rdx
    shrq $32, %rdx
1:  wrmsr
2:  xorl %eax, %eax
    retq
3:  movl $1, %eax
    retq
    FIXUP 1b, 2b, 3b

# heddle_user_load(from: rdi, to: rsi) -> rax: 0, or 1 after a fault. 32 bits, one access.
.global heddle_user_load
.balign 16
heddle_user_load:
    SMAP_SITE 1
1:  movl (%rdi), %eax
2:  movl %eax, (%rsi)
    xorl %eax, %eax
    SMAP_SITE 0
    retq
3:  movl $1, %eax
    SMAP_SITE 0
    retq
    FIXUP 1b, 2b, 3b

# heddle_user_exchange(at: rdi, expected: esi, new: edx, found: rcx) -> rax: 0, or 1 after a fault. 32 bits.
.global heddle_user_exchange
.balign 16
heddle_user_exchange:
    SMAP_SITE 1
    movl %esi, %eax
1:  lock cmpxchgl %edx, (%rdi)
2:  movl %eax, (%rcx)
    xorl %eax, %eax
    SMAP_SITE 0
    retq
3:  movl $1, %eax
    SMAP_SITE 0
    retq
    FIXUP 1b, 2b, 3b
.popsection

.pushsection .rodata.smap, "a", @progbits
.global heddle_smap_sites_end
heddle_smap_sites_end:
.popsection

.pushsection .rodata.fixup, "a", @progbits
.global heddle_fixups_end
heddle_fixups_end:
.popsection
