/* Brings memory up on a stack that was painted before, and ends with 0 if no more of it was used
 * than the header says, in bytes. A kernel has little, and an overflow goes unreported. `stack line`
 * has a command line with parameters, and words that are none. */
#include "framewright.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define RAM (64 * MIB)
#define STACK_BYTES ((size_t)1 << 20)
#define MOST_BYTES ((size_t)16 << 10)
#define PAINT 0xa5

static unsigned char memory[RAM] __attribute__((aligned(2 << 20)));
static unsigned char stack[STACK_BYTES] __attribute__((aligned(4096)));
static const char *line;
static uintptr_t top;
static int32_t result;
static size_t logged_bytes;

static uint32_t pin(void *own) { return own != NULL; }
static size_t irq_save(void *own) { return own != NULL; }
static void irq_restore(void *own, size_t state) { (void)own, (void)state; }
static void take_log(void *own, const char *text, size_t length) {
    (void)own, (void)text;
    logged_bytes += length;
}

static const struct fw_platform platform = {
    .size = sizeof(struct fw_platform),
    .version = FW_VERSION,
    .cpus = 1,
    .direct_base = memory,
    .direct_limit = RAM,
    .pin = pin,
    .irq_save = irq_save,
    .irq_restore = irq_restore,
    .log = take_log,
};
static const struct fw_range map[] = {
    {0, RAM, FW_CONVENTIONAL},
    {8 * MIB, MIB, FW_RESERVED},
    {16 * MIB, MIB, FW_ACPI_RECLAIMABLE},
};
static const struct fw_span used[] = {{MIB, MIB}};

static void *run(void *nothing) {
    int here;
    top = (uintptr_t)&here;
    result = fw_bring_up(&platform, map, 3, used, 1, line);
    return nothing;
}

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "line") == 0)
        line = "hugepages=2 nonsense mem=63M memmap=4K$0x2000000 min_free_kbytes=256 cma=4M "
               "memmap=wrong kernelcore=16M";
    memset(stack, PAINT, sizeof stack);
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) || pthread_attr_setstack(&attributes, stack, STACK_BYTES) ||
        pthread_create(&thread, &attributes, run, NULL) || pthread_join(thread, NULL)) {
        fprintf(stderr, "no thread\n");
        return 1;
    }
    size_t untouched = 0;
    while (untouched < sizeof stack && stack[untouched] == PAINT) untouched++;
    size_t taken = top - (uintptr_t)stack - untouched;
    printf("%zu bytes of stack\n", taken);
    if (result != FW_OK || (line != NULL) != (logged_bytes != 0)) {
        fprintf(stderr, "%s, %zu bytes logged\n", fw_strerror(result), logged_bytes);
        return 1;
    }
    if (taken < 1024 || taken > MOST_BYTES) {
        fprintf(stderr, "%zu bytes of stack, %zu are promised\n", taken, MOST_BYTES);
        return 1;
    }
    return 0;
}
