# From the PVH entry (32-bit, paging off, EBX = start information) to `kernel_main` in 64-bit mode.
# For the kernel in C as well. AT&T syntax.

.section .note.Xen, "a", @note
.balign 4
.long 4, 8, 18                  # length of the name, length of the descriptor, XEN_ELFNOTE_PHYS32_ENTRY
.asciz "Xen"
.quad pvh_entry

.text
.code32
.global pvh_entry
pvh_entry:
    cli
    cld
    movl %ebx, %edi
    movl $0x80000001, %eax
    cpuid
    notl %edx                   # pages of 1 GiB: one table then maps 512 GiB; the no-execute bit
    testl $(1 << 26 | 1 << 20), %edx
    jnz unsupported
    xorl %ecx, %ecx
1:  movl %ecx, %eax
    shll $30, %eax
    orl $0x83, %eax             # present, writable, large
    movl %eax, pointers(, %ecx, 8)
    movl %ecx, %eax
    shrl $2, %eax
    movl %eax, pointers + 4(, %ecx, 8)
    incl %ecx
    cmpl $512, %ecx
    jne 1b
    movl $(pointers + 3), %eax  # twice: where memory is, and at 0xffff800000000000
    movl %eax, root
    movl %eax, root + 256 * 8
    movl $root, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x620, %eax            # PAE, OSFXSR, OSXMMEXCPT: compiled code uses SSE2
    movl %eax, %cr4
    movl $0xc0000080, %ecx      # EFER
    rdmsr
    orl $0x900, %eax            # LME, NXE: page tables may forbid execution
    wrmsr
    movl %cr0, %eax
    andl $0xfffffff3, %eax      # EM, TS off
    orl $0x80010003, %eax       # PG, WP (read-only is so for the kernel, too), MP, PE on
    movl %eax, %cr0
    lgdtl descriptors_pointer
    ljmpl $0x08, $long_mode

unsupported:
    movl $text, %esi
    movl $(text_end - text), %ecx
    movw $0x3f8, %dx
    rep outsb
    movw $0xf4, %dx
    movl $0x12, %eax
    outl %eax, %dx
2:  hlt
    jmp 2b

.code64
long_mode:
    movl %edi, %edi             # the upper half may hold anything
    movl $stack_top, %esp
    xorl %ebp, %ebp
    call kernel_main
    ud2

.section .rodata
text:
    .ascii "this CPU lacks pages of 1 GiB or the no-execute bit\n"
text_end:
.balign 8
descriptors:
    .quad 0
    .quad 0x00af9b000000ffff    # 0x08: code of 64 bits
descriptors_pointer:
    .word 15
    .long descriptors

.bss
.balign 4096
root:      .skip 4096
pointers:  .skip 4096
           .skip 256 * 1024
stack_top:

.section .note.GNU-stack, "", @progbits
