/* A kernel in C on Framewright: one CPU, no interrupts, the memory map of a PVH boot loader.
 *
 *     cargo rustc --release -p framewright-c --crate-type staticlib -- --cfg framewright_archive
 *     gcc -ffreestanding -mno-red-zone -fno-pic -fno-stack-protector -O2 \
 *         -fno-tree-loop-distribute-patterns -nostdlib -static \
 *         -Wl,-T,examples/minimal-kernel/linker.ld -Icrates/framewright-c/include \
 *         examples/minimal-kernel/src/boot.s examples/c-kernel/kernel.c \
 *         target/release/libframewright_c.a -o target/c-kernel
 *     qemu-system-x86_64 -cpu max -m 256M -nographic -no-reboot \
 *         -device isa-debug-exit,iobase=0xf4,iosize=4 -kernel target/c-kernel
 */
#include "framewright.h"

/* Where boot.s maps physical memory, and how much of it. */
#define DIRECT_MAP ((unsigned char *)0xffff800000000000)
#define DIRECT_BYTES ((uint64_t)512 << 30)
#define PAGE ((uint64_t)4096)
#define MIB ((uint64_t)1 << 20)

/* What compiled code expects. Slow and right; the option -fno-tree-loop-distribute-patterns keeps
 * the compiler from calling them in themselves. */
void *memcpy(void *to, const void *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at++) ((char *)to)[at] = ((const char *)from)[at];
    return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
    if ((uintptr_t)to - (uintptr_t)from >= bytes) return memcpy(to, from, bytes);
    while (bytes-- > 0) ((char *)to)[bytes] = ((const char *)from)[bytes];
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    for (size_t at = 0; at < bytes; at++) ((char *)to)[at] = (char)value;
    return to;
}

int memcmp(const void *one, const void *other, size_t bytes) {
    const unsigned char *a = one, *b = other;
    for (; bytes > 0; bytes--, a++, b++)
        if (*a != *b) return *a - *b;
    return 0;
}

int bcmp(const void *one, const void *other, size_t bytes) { return memcmp(one, other, bytes); }

/* The first serial port, and QEMU's exit device. */
static void out(uint16_t port, uint8_t value) {
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static uint8_t in(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void print(const char *text, size_t length) {
    for (; length > 0; length--, text++) {
        while (!(in(0x3f8 + 5) & 0x20)) {}
        out(0x3f8, (uint8_t)*text);
    }
}

static void say(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    print(text, length);
}

static void number(uint64_t value, unsigned base) {
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = "0123456789abcdef"[value % base];
    while ((value /= base) && at > 0);
    print(digits + at, sizeof digits - at);
}

static void line(const char *before, uint64_t value, const char *after) {
    say(before);
    number(value, 10);
    say(after);
    say("\n");
}

__attribute__((noreturn)) static void leave(uint8_t code) {
    __asm__ volatile("outl %0, %1" : : "a"((uint32_t)code), "Nd"((uint16_t)0xf4));
    for (;;) __asm__ volatile("cli; hlt");
}

/* Ends the machine if a call did not return 0. */
static void must(const char *what, int32_t error) {
    if (error == FW_OK) return;
    say(what);
    say(": ");
    say(fw_strerror(error));
    say("\n");
    leave(0x12);
}

/* The platform: one CPU that is never taken from anybody, interrupts off for good. */
static uint32_t pin(void *context) {
    (void)context;
    return 0;
}

static size_t irq_save(void *context) {
    size_t flags;
    (void)context;
    __asm__ volatile("pushfq; popq %0; cli" : "=r"(flags) : : "memory");
    return flags & 0x200;
}

static void irq_restore(void *context, size_t state) {
    (void)context;
    if (state) __asm__ volatile("sti" : : : "memory");
}

static void log_text(void *context, const char *text, size_t length) {
    (void)context;
    print(text, length);
}

static void halt(void *context) {
    (void)context;
    leave(0x11);
}

static const struct fw_platform platform = {
    .size = sizeof(struct fw_platform),
    .version = FW_VERSION,
    .cpus = 1,
    .direct_base = DIRECT_MAP,
    .direct_limit = DIRECT_BYTES,
    .pin = pin,
    .irq_save = irq_save,
    .irq_restore = irq_restore,
    .log = log_text,
    .halt = halt,
};

/* What a PVH boot loader leaves. */
struct start_info {
    uint32_t magic, version, flags, modules;
    uint64_t module_list, command_line, rsdp, memory_map;
    uint32_t entries, reserved;
};

struct entry {
    uint64_t start, bytes;
    uint32_t type, reserved;
};

static enum fw_kind kind(uint32_t type) {
    switch (type) {
    case 1: return FW_CONVENTIONAL;
    case 3: return FW_ACPI_RECLAIMABLE;
    case 4: return FW_ACPI_NVS;
    case 5: return FW_UNUSABLE;
    default: return FW_RESERVED;
    }
}

extern char image_start[], image_end[];

/* A RAM disk that boot has read: it is given back. */
static const struct fw_span disk = {16 * MIB, 2 * MIB};

static void bring_up(const struct start_info *start) {
    static struct fw_range map[128];
    const struct entry *entries = (const void *)(DIRECT_MAP + start->memory_map);
    const char *words = start->command_line ? (char *)DIRECT_MAP + start->command_line : NULL;
    const struct fw_span used[] = {
        {0, MIB}, /* the BIOS's data, and what the boot loader left */
        {(uintptr_t)image_start, (uintptr_t)(image_end - image_start)},
        {(uintptr_t)start - (uintptr_t)DIRECT_MAP, sizeof *start},
        {start->memory_map, start->entries * sizeof *entries},
        {start->command_line, words ? 4096 : 0},
        disk,
    };
    size_t count = start->entries;
    /* A map without some of its lines is a wrong one: they may reserve what others call usable. */
    if (count > sizeof map / sizeof *map) {
        say("the memory map has more than 128 entries\n");
        leave(0x12);
    }
    for (size_t i = 0; i < count; i++)
        map[i] = (struct fw_range){entries[i].start, entries[i].bytes, kind(entries[i].type)};
    must("bring-up", fw_bring_up(&platform, map, count, used, sizeof used / sizeof *used, words));
}

void kernel_main(uint64_t start_info) {
    const struct start_info *start = (const void *)(DIRECT_MAP + start_info);
    struct fw_platform wrong = platform;
    struct fw_counters before, after;
    uint64_t pages[1000], run, huge, stack, count;

    if (start->magic != 0x336ec578 || start->version < 1) {
        say("no PVH start information with a memory map\n");
        leave(0x12);
    }
    wrong.irq_save = NULL;
    say("a platform without irq_save: ");
    say(fw_strerror(fw_check_platform(&wrong)));
    say("\n");

    bring_up(start);
    must("counters", fw_get_counters(&before));
    line("memory is up: ", before.free_pages, " pages are free");
    line("tables have ", before.metadata_bytes, " bytes");
    must("release", fw_release(disk.start, disk.bytes, &count));
    line("the RAM disk was given back: ", count, " pages");
    must("counters", fw_get_counters(&before));

    must("a huge page", fw_allocate_order(9, FW_MOVABLE, &huge));
    must("three pages", fw_allocate_pages(3, 0, &run));
    must("a stack", fw_allocate_run(5, 2, FW_UNMOVABLE, &stack));
    memset(fw_direct(huge), 0xaa, 512 * PAGE);
    memset(fw_direct(run), 0xbb, 3 * PAGE);
    memset(fw_direct(stack), 0xcc, 5 * PAGE);
    say("a huge page at 0x");
    number(huge, 16);
    say(", three pages at 0x");
    number(run, 16);
    say(", a stack at 0x");
    number(stack, 16);
    say("\n");
    for (size_t i = 0; i < 1000; i++) {
        must("a page", fw_allocate_order(0, FW_UNMOVABLE, &pages[i]));
        *(uint64_t *)fw_direct(pages[i]) = i;
    }
    for (size_t i = 0; i < 1000; i++) {
        if (*(uint64_t *)fw_direct(pages[i]) != i) {
            say("a page was given out twice\n");
            leave(0x12);
        }
        must("free", fw_free_order(pages[i], 0));
    }
    must("free a huge page", fw_free_order(huge, 9));
    must("free three pages", fw_free_pages(run, 3));
    must("free a stack", fw_free_pages(stack, 5));

    must("drain", fw_drain(&count));
    line("", count, " pages were in the cache");
    must("verify", fw_verify(&after));
    if (memcmp(&before, &after, sizeof before)) {
        line("not all is back: ", after.free_pages, " pages are free");
        leave(0x12);
    }
    say("all are back\n");
    leave(0x10);
}
