# From the PVH entry (32-bit, paging off, EBX = start information) to Rust in 64-bit mode. AT&T syntax.
#
# The boot tables map the first 4 GiB twice, at their own addresses and at 0xffff800000000000, where the direct map stays for ever.
# They use pages of 2 MiB, which every 64-bit CPU has; pages of 1 GiB would need a question to CPUID and a second kind of table here.

.section .note.Xen, "a", @note
.balign 4
.long 4                         # length of the name
.long 8                         # length of the descriptor: QEMU reads 8 bytes
.long 18                        # XEN_ELFNOTE_PHYS32_ENTRY
.asciz "Xen"
.quad pvh_entry

# From 32-bit mode without paging to 64-bit mode at `target`, with the boot tables.
.macro ENTER_LONG_MODE target
    movl $boot_root, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x6a0, %eax            # PAE, PGE, OSFXSR, OSXMMEXCPT
    movl %eax, %cr4
    movl $0xc0000080, %ecx      # EFER
    rdmsr
    orl $0x900, %eax            # LME, NXE
    wrmsr
    movl %cr0, %eax
    andl $0x9ffffff3, %eax      # CD, NW, EM, TS off: the precompiled core library uses SSE2
    orl $0x80010023, %eax       # PG, WP, NE, MP, PE on
    movl %eax, %cr0
    lgdtl boot_descriptors_pointer
    ljmpl $0x08, $\target
.endm

.section .boot.text, "ax", @progbits
.code32
.global pvh_entry
pvh_entry:
    cli
    cld
    movl %ebx, %ebp

    # Without 64-bit mode or the no-execute bit there is no use in going on.
    movl $0x80000000, %eax
    cpuid
    cmpl $0x80000001, %eax
    jb unsupported
    movl $0x80000001, %eax
    cpuid
    andl $(1 << 29 | 1 << 20), %edx
    cmpl $(1 << 29 | 1 << 20), %edx
    jne unsupported

    # 2048 entries of 2 MiB: present, writable, large.
    movl $boot_directories, %edi
    movl $0x83, %eax
    movl $2048, %ecx
1:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x200000, %eax
    addl $8, %edi
    decl %ecx
    jnz 1b

    movl $(boot_directories + 0x3), %eax
    movl $boot_pointers, %edi
    movl $4, %ecx
2:  movl %eax, (%edi)
    addl $4096, %eax
    addl $8, %edi
    decl %ecx
    jnz 2b

    movl $(boot_pointers + 0x3), %eax
    movl %eax, boot_root
    movl %eax, boot_root + 256 * 8

    ENTER_LONG_MODE long_mode

unsupported:
    movl $unsupported_text, %esi
3:  movb (%esi), %al
    testb %al, %al
    jz 4f
    movw $0x3f8, %dx
    outb %al, %dx
    incl %esi
    jmp 3b
4:  movw $0xf4, %dx             # a refused boot
    movl $0x12, %eax
    outl %eax, %dx
5:  hlt
    jmp 5b

.code64
long_mode:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    leaq stack_top(%rip), %rsp
    movl %ebp, %edi
    xorl %ebp, %ebp
    call guest_main
    ud2

.section .rodata.boot, "a", @progbits
unsupported_text:
    .asciz "Framewright: this CPU lacks 64-bit mode or the no-execute bit\r\n"
.balign 8
boot_descriptors:
    .quad 0
    .quad 0x00af9b000000ffff    # 0x08 code
    .quad 0x00cf93000000ffff    # 0x10 data
    .quad 0x00cf9b000000ffff    # 0x18 code of 32 bits, where other CPUs pass through
boot_descriptors_pointer:
    .word 31
    .long boot_descriptors

.section .bss.boot, "aw", @nobits
.balign 4096
boot_root:        .skip 4096
boot_pointers:    .skip 4096
boot_directories: .skip 4 * 4096
