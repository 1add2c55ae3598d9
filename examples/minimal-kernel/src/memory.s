# The memory functions of C, which compiled code calls and nobody else supplies. AT&T syntax.

.text
.code64
.global memcpy, memmove, memset, memcmp, bcmp, rust_eh_personality
memmove:
    movq %rdi, %rcx
    subq %rsi, %rcx
    cmpq %rdx, %rcx
    jae memcpy                  # upwards does not overtake its source
    movq %rdi, %rax
    leaq -1(%rdi, %rdx), %rdi
    leaq -1(%rsi, %rdx), %rsi
    movq %rdx, %rcx
    std
    rep movsb
    cld
    ret
memcpy:
    movq %rdi, %rax
    movq %rdx, %rcx
    rep movsb
    ret
memset:
    movq %rdi, %r8
    movl %esi, %eax
    movq %rdx, %rcx
    rep stosb
    movq %r8, %rax
    ret
memcmp:
bcmp:
    xchgq %rdi, %rsi
    movq %rdx, %rcx
    xorl %eax, %eax             # equal, if there is nothing to compare
    repe cmpsb
    je 3f
    movzbl -1(%rsi), %eax
    movzbl -1(%rdi), %ecx
    subl %ecx, %eax
3:  ret
rust_eh_personality:            # named by the core library, never called
    ud2
