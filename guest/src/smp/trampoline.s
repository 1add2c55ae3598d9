# Where the other CPUs begin: a page below 1 MiB, in real mode, to 64-bit mode and Rust. AT&T syntax. Uses what `boot.s` defines.
#
# The first part is copied to that page and does not know its address; everything after the far jump is in the image.

.section .rodata.trampoline, "a", @progbits
.code16
.global trampoline_start, trampoline_end
trampoline_start:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    lgdtl trampoline_pointer - trampoline_start
    movl %cr0, %eax
    orl $1, %eax                # PE
    movl %eax, %cr0
    ljmpl $0x18, $other_cpu
.balign 4
trampoline_pointer:
    .word 31
    .long boot_descriptors
trampoline_end:

.section .boot.text, "ax", @progbits
.code32
other_cpu:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    ENTER_LONG_MODE other_cpu_long

.code64
other_cpu_long:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movq OTHER_CPU_ROOT(%rip), %rax
    movq %rax, %cr3

    # Which CPU this is: the identifier of its interrupt controller, 32 bits wide where there is a leaf for it.
    xorl %eax, %eax
    cpuid
    cmpl $0xb, %eax
    jb 1f
    movl $0xb, %eax
    xorl %ecx, %ecx
    cpuid
    testl %ebx, %ebx
    jnz 2f
1:  movl $1, %eax
    cpuid
    shrl $24, %ebx
    movl %ebx, %edx
2:  leaq OTHER_CPU_IDS(%rip), %rsi
    leaq OTHER_CPU_STACKS(%rip), %r8
    movl OTHER_CPU_COUNT(%rip), %ecx
    xorl %edi, %edi
3:  cmpl %ecx, %edi
    jae 4f
    cmpl (%rsi,%rdi,4), %edx
    je 5f
    incl %edi
    jmp 3b
4:  cli                         # nobody knows this CPU
    hlt
    jmp 4b
5:  movq (%r8,%rdi,8), %rsp
    testq %rsp, %rsp
    jz 4b
    xorl %ebp, %ebp
    call other_cpu_main
    ud2
