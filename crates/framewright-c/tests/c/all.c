/* Calls every function of framewright.h in a process whose memory is an array. Ends with 0 if all
 * is as the header says; `all two` also has two threads that are CPUs, and in `all identity`
 * addresses are physical. */
#define _GNU_SOURCE
#include "framewright.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
#define PAGE ((uint64_t)4096)
/* What the map has, and what is added later. */
#define RAM (32 * MIB)
#define MORE (16 * MIB)

static unsigned char memory[RAM + MORE] __attribute__((aligned(2 << 20)));
static char logged[4096];
static size_t logged_bytes;
static _Thread_local int pinned, masked;
static _Thread_local uint32_t this_cpu;
static int context;

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "line %d: %s\n%s", __LINE__, #condition, logged);   \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

/* An expression returns this error, and there are words for it. */
#define GIVES(error, expression)                                                \
    do {                                                                        \
        int32_t result = (expression);                                          \
        if (result != (error)) {                                                \
            fprintf(stderr, "line %d: %s: %d (%s), not %s\n%s", __LINE__,       \
                    #expression, result, fw_strerror(result), #error, logged);  \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

static uint32_t pin(void *own) {
    CHECK(own == &context);
    pinned++;
    return this_cpu;
}

static void unpin(void *own, uint32_t cpu) {
    /* A number that is no CPU's need not come back as it was. */
    CHECK(own == &context && (cpu == this_cpu || cpu == INT32_MAX) && pinned > 0);
    pinned--;
}

static size_t irq_save(void *own) {
    CHECK(own == &context);
    return (size_t)masked++;
}

static void irq_restore(void *own, size_t state) {
    CHECK(own == &context && masked > 0 && state == (size_t)--masked);
}

static void cpu_barrier(void *own) {
    CHECK(own == &context && !pinned && !masked);
    CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
}

static bool can_wait(void *own) { return own == &context && !pinned && !masked; }
static void relax(void *own) { CHECK(own == &context); }
static void yield_now(void *own) { CHECK(own == &context && !pinned); }
static uint64_t current_task(void *own) { return own == &context ? this_cpu + 1 : 0; }
static uint64_t now_ns(void *own) { return own == &context ? 1000 : 0; }

static void take_log(void *own, const char *text, size_t length) {
    CHECK(own == &context);
    if (length > sizeof logged - 1 - logged_bytes) length = sizeof logged - 1 - logged_bytes;
    memcpy(logged + logged_bytes, text, length);
    logged_bytes += length;
}

static void halt(void *own) {
    CHECK(own == &context);
    fprintf(stderr, "halt\n%s", logged);
    abort();
}

static struct fw_platform platform = {
    .size = sizeof(struct fw_platform),
    .version = FW_VERSION,
    .cpus = 1,
    .direct_base = memory,
    .direct_limit = RAM + MORE,
    .context = &context,
    .pin = pin,
    .unpin = unpin,
    .irq_save = irq_save,
    .irq_restore = irq_restore,
    .cpu_barrier = cpu_barrier,
    .can_wait = can_wait,
    .yield_now = yield_now,
    .relax = relax,
    .current_task = current_task,
    .now_ns = now_ns,
    .log = take_log,
    .halt = halt,
};

static const struct fw_range map[] = {
    {0, RAM, FW_CONVENTIONAL},
    {0x9fc00, 0x60400, FW_RESERVED},
    {RAM - MIB, MIB, FW_ACPI_NVS},
    {RAM - 2 * MIB, MIB, FW_ACPI_RECLAIMABLE},
    {RAM, 0, FW_CONVENTIONAL},
    {RAM, 0, 77},
};
/* The kernel's image, and an initial RAM disk, which is released later. */
static const struct fw_span used[] = {{MIB, MIB + 5}, {8 * MIB, 2 * MIB}};

static int32_t bring_up(const struct fw_platform *with) {
    return fw_bring_up(with, map, 6, used, 2, "min_free_kbytes=256 quiet");
}

/* A platform with one change is refused, by both calls, before anything is called. */
#define REFUSED(error, change)                                                  \
    do {                                                                        \
        struct fw_platform wrong = platform;                                    \
        wrong.change;                                                           \
        GIVES(error, fw_check_platform(&wrong));                                \
        GIVES(error, bring_up(&wrong));                                         \
        CHECK(masked == 0 && pinned == 0);                                      \
    } while (0)

static void wrong_platforms(void) {
    GIVES(FW_NULL, fw_check_platform(NULL));
    GIVES(FW_NULL, bring_up(NULL));
    GIVES(FW_NULL, fw_check_platform((const void *)((const char *)&platform + 1)));
    REFUSED(FW_WRONG_SIZE, size = 0);
    REFUSED(FW_WRONG_SIZE, size = sizeof(struct fw_platform) - 8);
    REFUSED(FW_WRONG_VERSION, version = 0);
    REFUSED(FW_WRONG_VERSION, version = FW_VERSION + 1);
    REFUSED(FW_NO_CPUS, cpus = 0);
    REFUSED(FW_WRONG_FLAGS, flags = 2);
    REFUSED(FW_WRONG_DIRECT_MAP, direct_base = NULL);
    REFUSED(FW_WRONG_DIRECT_MAP, direct_base = memory + 1);
    REFUSED(FW_WRONG_DIRECT_MAP, flags = FW_IDENTITY_MAP);
    REFUSED(FW_WRONG_DIRECT_MAP, direct_limit = UINT64_MAX);
    REFUSED(FW_NULL_CALL, pin = NULL);
    REFUSED(FW_NULL_CALL, irq_save = NULL);
    REFUSED(FW_NULL_CALL, irq_restore = NULL);
    /* The upper half of the address space, to its very end. */
    struct fw_platform high = platform;
    high.direct_base = (void *)((uintptr_t)1 << 63);
    high.direct_limit = (uint64_t)1 << 63;
    GIVES(FW_OK, fw_check_platform(&high));
    high.direct_limit += 1;
    GIVES(FW_WRONG_DIRECT_MAP, fw_check_platform(&high));
    struct fw_platform wrong = platform;
    wrong.cpus = 2;
    wrong.cpu_barrier = NULL;
    GIVES(FW_NULL_CALL, fw_check_platform(&wrong));
    const uint32_t numbers[] = {1, 7, INT32_MAX, 1u << 31, UINT32_MAX};
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        this_cpu = numbers[at];
        GIVES(FW_WRONG_CPU, bring_up(&platform));
    }
    this_cpu = 0;
    GIVES(FW_OK, fw_check_platform(&platform));
    /* A struct that ends where its `size` says is not read beyond, which the sanitiser would see. */
    uint32_t *brief = malloc(2 * sizeof *brief);
    CHECK(brief);
    brief[0] = 8;
    brief[1] = FW_VERSION;
    GIVES(FW_WRONG_SIZE, fw_check_platform((const struct fw_platform *)(void *)brief));
    free(brief);
}

static void wrong_maps(void) {
    const struct fw_range kind[] = {{0, RAM, 77}};
    const struct fw_range far[] = {{UINT64_MAX - PAGE, 2 * PAGE, FW_CONVENTIONAL}};
    const struct fw_range small[] = {{MIB, 4 * PAGE, FW_CONVENTIONAL}};
    const struct fw_range none[] = {{0, RAM, FW_RESERVED}};
    const struct fw_span beyond[] = {{UINT64_MAX, 2}};
    static struct fw_span many[1000];
    GIVES(FW_NULL, fw_bring_up(&platform, NULL, 1, NULL, 0, NULL));
    GIVES(FW_NULL, fw_bring_up(&platform, map, 6, NULL, 1, NULL));
    GIVES(FW_TOO_MANY_RANGES, fw_bring_up(&platform, map, SIZE_MAX, NULL, 0, NULL));
    GIVES(FW_TOO_MANY_RANGES, fw_bring_up(&platform, map, 6, many, 1000, NULL));
    GIVES(FW_NO_USABLE_MEMORY, fw_bring_up(&platform, NULL, 0, NULL, 0, NULL));
    GIVES(FW_NO_USABLE_MEMORY, fw_bring_up(&platform, none, 1, NULL, 0, NULL));
    GIVES(FW_WRONG_KIND, fw_bring_up(&platform, kind, 1, NULL, 0, NULL));
    GIVES(FW_BEYOND_ADDRESS_SPACE, fw_bring_up(&platform, far, 1, NULL, 0, NULL));
    GIVES(FW_BEYOND_ADDRESS_SPACE, fw_bring_up(&platform, map, 6, beyond, 1, NULL));
    GIVES(FW_NO_ROOM_FOR_TABLES, fw_bring_up(&platform, small, 1, NULL, 0, NULL));
    CHECK(logged_bytes > 0);
    GIVES(FW_WRONG_TEXT, fw_bring_up(&platform, map, 6, used, 2, "\xff"));
    char *words = malloc(4096);
    CHECK(words);
    memset(words, ' ', 4096);
    GIVES(FW_WRONG_TEXT, fw_bring_up(&platform, map, 6, used, 2, words));
    free(words);
}

static void before(void) {
    uint64_t address = 1;
    struct fw_counters counters;
    GIVES(FW_NOT_UP, fw_allocate_order(0, FW_MOVABLE, &address));
    GIVES(FW_NOT_UP, fw_allocate_pages(3, 0, &address));
    GIVES(FW_NOT_UP, fw_allocate_run(3, 0, FW_UNMOVABLE, &address));
    GIVES(FW_NOT_UP, fw_allocate_layout(9, 8, &address));
    GIVES(FW_NOT_UP, fw_free_order(PAGE, 0));
    GIVES(FW_NOT_UP, fw_free_pages(PAGE, 1));
    GIVES(FW_NOT_UP, fw_free_layout(PAGE, 1));
    GIVES(FW_NOT_UP, fw_add_memory(RAM, MORE, NULL));
    GIVES(FW_NOT_UP, fw_release(8 * MIB, 2 * MIB, NULL));
    GIVES(FW_NOT_UP, fw_drain(NULL));
    GIVES(FW_NOT_UP, fw_verify(NULL));
    GIVES(FW_NOT_UP, fw_get_counters(&counters));
    CHECK(address == 1 && fw_direct(2 * MIB) == NULL);
}

static void orders(void) {
    uint64_t address, again;
    for (uint32_t order = 0; order <= 10; order++) {
        GIVES(FW_OK, fw_allocate_order(order, order % 3, &address));
        CHECK(address % (PAGE << order) == 0 && address >= 2 * MIB);
        CHECK(fw_direct(address) == memory + address);
        CHECK(fw_direct(PAGE) == memory + PAGE && !fw_direct(PAGE - 1) && !fw_direct(RAM + MORE));
        memset(fw_direct(address), 0x5a, PAGE << order);
        GIVES(FW_OK, fw_free_order(address, order));
    }
    GIVES(FW_NULL, fw_allocate_order(0, FW_MOVABLE, NULL));
    GIVES(FW_BAD_ORDER, fw_allocate_order(19, FW_MOVABLE, &address));
    GIVES(FW_BAD_ORDER, fw_allocate_order(UINT32_MAX, FW_MOVABLE, &address));
    GIVES(FW_BAD_TYPE, fw_allocate_order(0, 3, &address));
    GIVES(FW_OUT_OF_MEMORY, fw_allocate_order(18, FW_MOVABLE, &address));
    GIVES(FW_NOT_ALIGNED, fw_free_order(2 * MIB + 8, 0));
    GIVES(FW_NOT_ALIGNED, fw_free_order(2 * MIB + PAGE, 1));
    GIVES(FW_NOT_ALLOCATED, fw_free_order(64 * MIB, 0));
    GIVES(FW_BAD_ORDER, fw_free_order(2 * MIB, 19));
    /* A block that is freed twice is an error at once. */
    GIVES(FW_OK, fw_allocate_order(10, FW_UNMOVABLE, &address));
    GIVES(FW_OK, fw_free_order(address, 10));
    again = address;
    GIVES(FW_NOT_ALLOCATED, fw_free_order(again, 10));
}

static void runs(void) {
    static const uint64_t sizes[] = {1, 2, 3, 5, 100, 280, 512, 600, 1025};
    uint64_t addresses[9];
    for (unsigned i = 0; i < 9; i++) {
        GIVES(FW_OK, fw_allocate_pages(sizes[i], i % 4, &addresses[i]));
        CHECK(addresses[i] % (PAGE << i % 4) == 0);
        memset(fw_direct(addresses[i]), (int)i, sizes[i] * PAGE);
    }
    for (unsigned i = 0; i < 9; i++) {
        unsigned char *bytes = fw_direct(addresses[i]);
        for (uint64_t at = 0; at < sizes[i] * PAGE; at++) CHECK(bytes[at] == i);
    }
    /* In two parts. */
    GIVES(FW_OK, fw_free_pages(addresses[8] + 600 * PAGE, 425));
    GIVES(FW_OK, fw_free_pages(addresses[8], 600));
    for (unsigned i = 0; i < 8; i++) GIVES(FW_OK, fw_free_pages(addresses[i], sizes[i]));
    GIVES(FW_NULL, fw_allocate_pages(1, 0, NULL));
    GIVES(FW_BAD_SIZE, fw_allocate_pages(0, 0, addresses));
    GIVES(FW_BAD_SIZE, fw_allocate_pages(UINT64_MAX, 0, addresses));
    GIVES(FW_BAD_ORDER, fw_allocate_pages(1, 40, addresses));
    GIVES(FW_OUT_OF_MEMORY, fw_allocate_pages(16 << 10, 0, addresses));
    GIVES(FW_BAD_SIZE, fw_free_pages(2 * MIB, 0));
    GIVES(FW_NOT_ALIGNED, fw_free_pages(2 * MIB + 1, 1));

    for (uint32_t type = FW_UNMOVABLE; type <= FW_RECLAIMABLE; type++) {
        GIVES(FW_OK, fw_allocate_run(5, type * 2, type, &addresses[type]));
        CHECK(addresses[type] % (PAGE << type * 2) == 0);
        memset(fw_direct(addresses[type]), (int)type, 5 * PAGE);
    }
    /* What is moved and what is not lie in blocks of their own. */
    for (unsigned i = 0; i < 3; i++)
        CHECK(addresses[i] / (2 * MIB) != addresses[(i + 1) % 3] / (2 * MIB));
    for (unsigned i = 0; i < 3; i++) GIVES(FW_OK, fw_free_pages(addresses[i], 5));
    GIVES(FW_NULL, fw_allocate_run(1, 0, FW_MOVABLE, NULL));
    GIVES(FW_BAD_TYPE, fw_allocate_run(1, 0, 3, addresses));
    GIVES(FW_BAD_ORDER, fw_allocate_run(1, 19, FW_MOVABLE, addresses));
    GIVES(FW_BAD_SIZE, fw_allocate_run(0, 0, FW_MOVABLE, addresses));
    GIVES(FW_BAD_SIZE, fw_allocate_run(1 + (1 << 18), 0, FW_MOVABLE, addresses));
    GIVES(FW_BAD_SIZE, fw_allocate_run(UINT64_MAX, 0, FW_MOVABLE, addresses));

    GIVES(FW_OK, fw_allocate_layout(3 * PAGE + 1, 16 * PAGE, addresses));
    CHECK(addresses[0] % (16 * PAGE) == 0);
    memset(fw_direct(addresses[0]), 1, 3 * PAGE + 1);
    GIVES(FW_OK, fw_free_layout(addresses[0], 3 * PAGE + 1));
    GIVES(FW_OK, fw_allocate_layout(0, 1, addresses));
    GIVES(FW_OK, fw_free_layout(addresses[0], 0));
    GIVES(FW_NULL, fw_allocate_layout(1, 1, NULL));
    GIVES(FW_BAD_ORDER, fw_allocate_layout(8, 0, addresses));
    GIVES(FW_BAD_ORDER, fw_allocate_layout(8, 24, addresses));
    GIVES(FW_BAD_SIZE, fw_allocate_layout(UINT64_MAX, 8, addresses));
}

static void growth(void) {
    struct fw_counters old, new;
    uint64_t pages = 0, more = 0;
    /* Tables of firmware that the kernel has read. */
    GIVES(FW_OK, fw_release(RAM - 2 * MIB, MIB, &pages));
    CHECK(pages == 256);
    GIVES(FW_OK, fw_get_counters(&old));
    void *crooked = (char *)&pages + 1;
    GIVES(FW_NULL, fw_release(8 * MIB, 2 * MIB, crooked));
    GIVES(FW_NULL, fw_add_memory(RAM, MORE / 2, crooked));
    GIVES(FW_NULL, fw_drain(crooked));
    GIVES(FW_NULL, fw_verify(crooked));
    GIVES(FW_OK, fw_release(8 * MIB, 2 * MIB, &pages));
    CHECK(pages == 512);
    GIVES(FW_PRESENT, fw_release(8 * MIB, 2 * MIB, NULL));
    GIVES(FW_NOT_MANAGED, fw_release(RAM + MIB, MIB, NULL));
    /* Page 0 is nobody's. */
    GIVES(FW_NOT_MANAGED, fw_release(0, MIB / 2, NULL));
    GIVES(FW_BAD_SIZE, fw_release(8 * MIB, 0, NULL));
    GIVES(FW_BEYOND_ADDRESS_SPACE, fw_release(UINT64_MAX, 2, NULL));
    GIVES(FW_NOT_ALIGNED, fw_add_memory(RAM + PAGE, MORE / 2, NULL));
    GIVES(FW_BEYOND_ADDRESS_SPACE, fw_add_memory(RAM + MORE, 2 * MIB, NULL));
    GIVES(FW_BEYOND_ADDRESS_SPACE, fw_add_memory(UINT64_MAX - MIB, 2 * MIB, NULL));
    GIVES(FW_NO_WINDOW, fw_add_memory(0, 2 * MIB, NULL));
    GIVES(FW_OK, fw_add_memory(RAM, MORE, &more));
    CHECK(more > 0 && more <= MORE / PAGE);
    GIVES(FW_PRESENT, fw_add_memory(RAM, MORE, NULL));
    GIVES(FW_OK, fw_get_counters(&new));
    CHECK(new.managed_pages == old.managed_pages + pages + more);
    /* The tables of what was added are allocated from what was there. */
    uint64_t tables = new.allocated_pages - old.allocated_pages;
    CHECK(new.free_pages == old.free_pages + pages + more - tables);
    CHECK(tables * PAGE >= new.metadata_bytes - old.metadata_bytes && tables * PAGE <= MIB);
}

/* All there is, page by page: each once, all of it writable, and all of it comes back. */
static void everything(void) {
    static uint64_t pages[(RAM + MORE) / PAGE];
    static unsigned char seen[(RAM + MORE) / PAGE];
    size_t count = 0;
    while (count < (RAM + MORE) / PAGE && fw_allocate_order(0, FW_MOVABLE, &pages[count]) == FW_OK) {
        CHECK(seen[pages[count] / PAGE]++ == 0);
        memset(fw_direct(pages[count]), 0xa5, PAGE);
        count++;
    }
    CHECK(count > 8000 && count < (RAM + MORE) / PAGE);
    while (count-- > 0) GIVES(FW_OK, fw_free_order(pages[count], 0));
}

static void *traffic(void *number) {
    this_cpu = *(uint32_t *)number;
    uint64_t kept[64] = {0}, pages[64] = {0}, seed = this_cpu * 77 + 1;
    for (unsigned turn = 0; turn < 20000; turn++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        unsigned slot = seed >> 33 & 63;
        if (kept[slot]) {
            uint64_t *first = fw_direct(kept[slot]);
            CHECK(*first == (kept[slot] ^ this_cpu));
            GIVES(FW_OK, fw_free_pages(kept[slot], pages[slot]));
            kept[slot] = 0;
        } else {
            pages[slot] = (seed >> 40) % 9 + 1;
            if (fw_allocate_pages(pages[slot], 0, &kept[slot]) != FW_OK) continue;
            *(uint64_t *)fw_direct(kept[slot]) = kept[slot] ^ this_cpu;
        }
    }
    for (unsigned slot = 0; slot < 64; slot++)
        if (kept[slot]) GIVES(FW_OK, fw_free_pages(kept[slot], pages[slot]));
    return NULL;
}

static void two_cpus(void) {
    pthread_t threads[2];
    uint32_t numbers[2] = {0, 1};
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, traffic, &numbers[i]));
    for (int i = 0; i < 2; i++) CHECK(!pthread_join(threads[i], NULL));
}

/* Where memory is seen where it is, and the platform has nothing that is optional. */
static int identity(void) {
    const struct fw_platform bare = {
        .size = sizeof bare,
        .version = FW_VERSION,
        .cpus = 1,
        .flags = FW_IDENTITY_MAP,
        .direct_limit = (uint64_t)(uintptr_t)memory + RAM,
        .context = &context,
        .pin = pin,
        .irq_save = irq_save,
        .irq_restore = irq_restore,
    };
    const struct fw_range all[] = {{(uint64_t)(uintptr_t)memory, RAM, FW_CONVENTIONAL}};
    uint64_t address;
    struct fw_counters counters;
    GIVES(FW_OK, fw_bring_up(&bare, all, 1, NULL, 0, NULL));
    GIVES(FW_OK, fw_allocate_pages(7, 0, &address));
    CHECK((uintptr_t)fw_direct(address) == address);
    memset(fw_direct(address), 1, 7 * PAGE);
    GIVES(FW_OK, fw_free_pages(address, 7));
    GIVES(FW_OK, fw_drain(NULL));
    GIVES(FW_OK, fw_verify(&counters));
    CHECK(counters.allocated_pages == 0);
    printf("%llu pages free\n", (unsigned long long)counters.free_pages);
    return 0;
}

int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "identity")) return identity();
    bool two = count > 1 && !strcmp(words[1], "two");
    struct fw_counters start, end, counted;
    uint64_t cached;
    CHECK(fw_version() == FW_VERSION);
    for (int32_t error = FW_OK; error <= FW_FAULT; error++) {
        CHECK(strlen(fw_strerror(error)) > 5 && strcmp(fw_strerror(error), "unknown error"));
        for (int32_t other = FW_OK; other < error; other++)
            CHECK(strcmp(fw_strerror(error), fw_strerror(other)));
    }
    CHECK(!strcmp(fw_strerror(FW_FAULT + 1), "unknown error"));
    CHECK(!strcmp(fw_strerror(-1), "unknown error"));
    before();
    wrong_platforms();
    wrong_maps();
    before();

    if (two) {
        platform.cpus = 2;
        CHECK(!syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
    }
    logged_bytes = 0;
    memset(logged, 0, sizeof logged);
    GIVES(FW_OK, bring_up(&platform));
    GIVES(FW_ALREADY_UP, bring_up(&platform));
    CHECK(fw_direct(0) == NULL && fw_direct(RAM + MORE) == NULL);
    CHECK(fw_direct(2 * MIB) == memory + 2 * MIB);
    GIVES(FW_NULL, fw_get_counters(NULL));
    growth();
    GIVES(FW_OK, fw_get_counters(&start));
    CHECK(start.free_pages > 9000 && start.free_pages <= start.managed_pages);
    CHECK(start.managed_pages + start.reserved_pages == start.present_pages);
    CHECK(start.metadata_bytes > 0);
    orders();
    runs();
    everything();
    if (two) two_cpus();
    GIVES(FW_OK, fw_drain(&cached));
    GIVES(FW_OK, fw_drain(NULL));
    GIVES(FW_OK, fw_verify(&counted));
    GIVES(FW_OK, fw_verify(NULL));
    GIVES(FW_OK, fw_get_counters(&end));
    CHECK(end.free_pages == start.free_pages && end.allocated_pages == start.allocated_pages);
    CHECK(!memcmp(&counted, &end, sizeof end));
    CHECK(pinned == 0 && masked == 0);
    printf("%llu pages free\n", (unsigned long long)end.free_pages);
    return 0;
}
