/* Framewright, a physical memory manager, for kernels in C. Made by cbindgen from
 * crates/framewright-c/src: change it there.
 *
 *     cargo rustc --release -p framewright-c --crate-type staticlib -- --cfg framewright_archive
 *
 * makes target/release/libframewright_c.a, to be linked with the kernel, which has memcpy, memmove,
 * memset, memcmp and bcmp of its own. A kernel whose interrupts use the stack that they interrupt
 * adds --target x86_64-unknown-none: no red zone, no vector registers. The order of work is in
 * examples/c-kernel: fill in an fw_platform, call fw_bring_up with the memory map and with what is
 * in use, allocate.
 *
 * Calls return 0 or an fw_error. They may come from any CPU and any context but an NMI, once
 * fw_bring_up has returned 0. Addresses are physical, pages have 4096 bytes, order n is 2^n pages.
 */

#ifndef FRAMEWRIGHT_H
#define FRAMEWRIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The version of this interface: what `fw_platform` says that it was written for.
#define FW_VERSION 1

// A flag of `fw_platform`: physical memory is seen where it is, and `direct_base` is null.
#define FW_IDENTITY_MAP 1

// What a call returns.
enum fw_error {
  // All is well.
  FW_OK = 0,
  // A pointer that must not be null is null, or one is not aligned as what it points to.
  FW_NULL = 1,
  // `fw_bring_up` has not succeeded yet.
  FW_NOT_UP = 2,
  // `fw_bring_up` has succeeded before.
  FW_ALREADY_UP = 3,
  // Another call of this kind is at work; nothing has changed.
  FW_BUSY = 4,
  // The platform's `size` is not `sizeof(struct fw_platform)`.
  FW_WRONG_SIZE = 5,
  // The platform's `version` is not `FW_VERSION`.
  FW_WRONG_VERSION = 6,
  // The platform's `cpus` is 0.
  FW_NO_CPUS = 7,
  // The platform lacks a function that it must have.
  FW_NULL_CALL = 8,
  // The platform's `pin` gave a number that is not below `cpus`.
  FW_WRONG_CPU = 9,
  // The platform's `direct_base` is null without `FW_IDENTITY_MAP`, or not null with it, or no
  // multiple of the page size, or `direct_limit` is beyond the end of the address space.
  FW_WRONG_DIRECT_MAP = 10,
  // The platform's `flags` have unknown bits.
  FW_WRONG_FLAGS = 11,
  // A range of the map has no known kind.
  FW_WRONG_KIND = 12,
  // Over 64 ranges that are used, or more of the map than there is room for: 256 always have
  // room, in any order and however they overlap.
  FW_TOO_MANY_RANGES = 13,
  // A range ends beyond the address space, or memory that is added beyond `direct_limit`.
  FW_BEYOND_ADDRESS_SPACE = 14,
  // The map has no usable memory.
  FW_NO_USABLE_MEMORY = 15,
  // There is no room for the tables.
  FW_NO_ROOM_FOR_TABLES = 16,
  // Nothing is left to hand out once the tables are placed.
  FW_NOTHING_TO_MANAGE = 17,
  // The command line is not UTF-8, or has 4096 bytes or more.
  FW_WRONG_TEXT = 18,
  // There is not as much memory in one run.
  FW_OUT_OF_MEMORY = 19,
  // No whole page, a size above 1 GiB that is larger than every zone, or an alignment above
  // 1 GiB.
  FW_BAD_SIZE = 20,
  // An order above 18, or an alignment that is no power of two.
  FW_BAD_ORDER = 21,
  // No such migrate type, or one that nobody allocates.
  FW_BAD_TYPE = 22,
  // An address is not aligned as the call wants it.
  FW_NOT_ALIGNED = 23,
  // These pages are not allocated, or not as this call frees them.
  FW_NOT_ALLOCATED = 24,
  // There is no memory at the address that the manager knows, or it is page 0.
  FW_NOT_MANAGED = 25,
  // There is memory already.
  FW_PRESENT = 26,
  // Memory that is added lies where no table reaches, or has frame 0.
  FW_NO_WINDOW = 27,
  // The manager uses these pages itself.
  FW_IN_USE = 28,
  // Something wrote to memory that was free.
  FW_DAMAGED = 29,
  // The tables contradict each other.
  FW_FAULT = 30,
};

// What a range of the memory map is.
enum fw_kind {
  // Usable memory (e820 type 1).
  FW_CONVENTIONAL = 0,
  // Must not be touched (e820 type 2 and every unknown type).
  FW_RESERVED = 1,
  // ACPI tables, in use until they are released with `fw_release` (e820 type 3). They count as
  // one of the ranges that are `used`, each.
  FW_ACPI_RECLAIMABLE = 2,
  // ACPI non-volatile storage (e820 type 4).
  FW_ACPI_NVS = 3,
  // Known to be bad (e820 type 5).
  FW_UNUSABLE = 4,
};

// What pages are for: memory of one type lies together, so that what can be moved does not stand
// between what cannot.
enum fw_type {
  // Stays where it is: page tables, memory for devices.
  FW_UNMOVABLE = 0,
  // Can be moved: memory of processes.
  FW_MOVABLE = 1,
  // Can be dropped: caches.
  FW_RECLAIMABLE = 2,
};

// The machine under the manager. All of it is copied by `fw_bring_up`; `context` and the functions
// stay for ever. A kernel with one CPU that never takes it from a task fills in what is not marked
// optional. Functions are called from any context in which the manager is called, but
// `cpu_barrier` and `yield_now` only where `can_wait` is true and the caller is not pinned, so
// that these two may sleep. They must not call the manager, and must not leave other than by
// returning (no longjmp, no unwinding).
struct fw_platform {
  // `sizeof(struct fw_platform)`.
  uint32_t size;
  // `FW_VERSION`.
  uint32_t version;
  // How many CPUs there can be, at least 1; their numbers are below it.
  uint32_t cpus;
  // 0 or `FW_IDENTITY_MAP`.
  uint32_t flags;
  // Where physical address 0 is seen; address `a` is seen `a` bytes behind it. A multiple of
  // 4096.
  void *direct_base;
  // One past the highest physical address that is seen there, bytes.
  uint64_t direct_limit;
  // The first argument of every function.
  void *context;
  // Keeps the caller on its CPU, keeps other tasks of that CPU away, and gives its number.
  // Disabling preemption is enough; interrupts may stay on. Nests.
  uint32_t (*pin)(void *context);
  // Ends what `pin` began. Optional where tasks never lose their CPU.
  void (*unpin)(void *context, uint32_t cpu);
  // Turns interrupts off on this CPU and gives what `irq_restore` needs. Nests.
  size_t (*irq_save)(void *context);
  // Undoes the matching `irq_save`.
  void (*irq_restore)(void *context, size_t state);
  // Has every CPU execute a full memory barrier before it returns. Needed with more than one
  // CPU.
  //
  // A CPU that does not run yet, or no longer runs, is left out: nobody interrupts it or waits
  // for it. If the running CPUs are a set in memory, three rules apply. A CPU that stops leaves
  // the set with a release after its last call of the manager. A CPU that starts enters the set
  // and then executes a full barrier before its first call. `cpu_barrier` itself executes a full
  // barrier and then reads the set with an acquire.
  void (*cpu_barrier)(void *context);
  // Whether the caller may wait for other CPUs and tasks: no lock held, interrupts on. Optional:
  // it never may.
  bool (*can_wait)(void *context);
  // Lets other tasks run, those of lower priority included: it yields, or sleeps for a while.
  // Optional where no task ever takes the CPU from another.
  void (*yield_now)(void *context);
  // One turn of a busy wait. Optional.
  void (*relax)(void *context);
  // A number of the calling task, never 0; 0: tasks cannot be told apart. Optional.
  uint64_t (*current_task)(void *context);
  // A monotonic clock, nanoseconds. Optional.
  uint64_t (*now_ns)(void *context);
  // Prints `length` bytes of text: what is wrong and where, in pieces of a line. Optional.
  void (*log)(void *context, const char *text, size_t length);
  // Stops the machine, after a defect of the manager was logged; must not return. Optional: the
  // CPU spins.
  void (*halt)(void *context);
};

// A range of the memory map. Ranges may come in any order, touch and overlap: the most restrictive
// kind wins on every byte. Those of no bytes are skipped.
struct fw_range {
  // Its first physical address.
  uint64_t start;
  // Its size.
  uint64_t bytes;
  // An `fw_kind`.
  uint32_t kind;
};

// Physical memory that is in use when memory comes up.
struct fw_span {
  // Its first physical address.
  uint64_t start;
  // Its size.
  uint64_t bytes;
};

// Pages by what they are, all of 4096 bytes.
struct fw_counters {
  // Memory that the map has.
  uint64_t present_pages;
  // Given to the manager to hand out.
  uint64_t managed_pages;
  // In use before, with the manager's tables among them.
  uint64_t reserved_pages;
  // Can be handed out.
  uint64_t free_pages;
  // Handed out, in a CPU's cache, or tables of memory that was added.
  uint64_t allocated_pages;
  // Bytes of the manager's own tables.
  uint64_t metadata_bytes;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Brings memory up. What is in `map` and not in `used` belongs to the manager from now on; the
// kernel's image, its stack and what the boot loader left belong in `used`. Page 0 is never
// handed out. `command_line` may be null and has less than 4096 bytes; words in it that are no
// parameters of the manager are skipped.
//
// If it fails nothing has happened, and it may be called again. It takes up to 16 KiB of stack, 32
// in debug builds.
//
// The caller promises:
// What `map` calls conventional and `used` does not name is memory that nobody uses, seen at
// `direct_base`. `map` and `used` have as many elements as is said, and `command_line` ends in a
// zero. The platform's functions do what their descriptions say, for ever.
int32_t fw_bring_up(const struct fw_platform *platform,
                    const struct fw_range *map,
                    size_t map_count,
                    const struct fw_span *used,
                    size_t used_count,
                    const char *command_line);

// Words for what a call returned, in one line, for ever. Never null: an unknown number has words
// that say so.
const char *fw_strerror(int32_t error);

// Allocates 2^`order` pages of a migrate type (`fw_type`), aligned to their size, and writes their
// physical address to `address`. Orders are 0 to 18.
//
// The caller promises:
// `address` is null or points to a number.
int32_t fw_allocate_order(uint32_t order, uint32_t migrate_type, uint64_t *address);

// Frees what `fw_allocate_order` gave, with its order.
//
// The caller promises:
// The caller owns these pages, and nobody uses them any more.
int32_t fw_free_order(uint64_t address, uint32_t order);

// Allocates `pages` movable pages in one run, any number, whose first is aligned to
// 2^`align_order` pages, and writes their physical address to `address`.
//
// The caller promises:
// `address` is null or points to a number.
int32_t fw_allocate_pages(uint64_t pages, uint32_t align_order, uint64_t *address);

// Allocates `pages` pages of a migrate type (`fw_type`) in one run of at most 1 GiB, whose first
// is aligned to 2^`align_order` pages, and writes their physical address to `address`. Stacks,
// heaps and rings are `FW_UNMOVABLE`.
//
// The caller promises:
// `address` is null or points to a number.
int32_t fw_allocate_run(uint64_t pages,
                        uint32_t align_order,
                        uint32_t migrate_type,
                        uint64_t *address);

// Frees a run of pages that `fw_allocate_pages` or `fw_allocate_run` gave, or a part of one.
//
// The caller promises:
// The caller owns these pages, and nobody uses them any more.
int32_t fw_free_pages(uint64_t address, uint64_t pages);

// Allocates whole movable pages for `bytes` bytes, aligned to `align_bytes` and to a page, and
// writes their physical address to `address`. No bytes take one page. For pages that stay where
// they are there is `fw_allocate_run`.
//
// The caller promises:
// `address` is null or points to a number.
int32_t fw_allocate_layout(uint64_t bytes, uint64_t align_bytes, uint64_t *address);

// Frees what `fw_allocate_layout` gave for `bytes` bytes.
//
// The caller promises:
// The caller owns these pages, and nobody uses them any more.
int32_t fw_free_layout(uint64_t address, uint64_t bytes);

// Where physical `address` is seen. Null where it is not, in the first page, which is never handed
// out, and while memory is not up.
void *fw_direct(uint64_t address);

// Adds memory that the map did not have, below `direct_limit`. Start and size are multiples of 2
// MiB. Of the memory that is there, its tables take 1 MiB at most, or about 24 bytes for each GiB
// that is added if that is more; the others lie in the new memory. With
// `memory_hotplug.memmap_on_memory=N` on the command line all of them are in the memory that is
// there. `pages`, if it is not null, gets the pages that can be handed out.
//
// The caller promises:
// The range is memory that nobody uses, seen at `direct_base`, and stays so. `pages` is null or
// points to a number.
int32_t fw_add_memory(uint64_t start, uint64_t bytes, uint64_t *pages);

// Hands memory over that was in use when memory came up: an initial RAM disk, page tables of the
// boot loader, ACPI tables. The pages that lie wholly in the range, each once. All of them have to
// be memory that was used, or none is handed over: a range that begins at 0 is given from 4096 on,
// as page 0 is never handed out. `pages`, if it is not null, gets their number.
//
// The caller promises:
// The caller owns the range, having named it in `used`, and nobody uses it any more. `pages`
// is null or points to a number.
int32_t fw_release(uint64_t start, uint64_t bytes, uint64_t *pages);

// Counts pages. Takes no lock: what others do meanwhile is in some counters and not in others.
//
// The caller promises:
// `counters` is null or points to an `fw_counters`.
int32_t fw_get_counters(struct fw_counters *counters);

// Gives back what CPUs keep for their next requests. Where others cannot be waited for
// (`can_wait`), only the calling CPU does. `pages`, if it is not null, gets how many.
//
// The caller promises:
// `pages` is null or points to a number.
int32_t fw_drain(uint64_t *pages);

// Recounts everything and compares it with the tables; slow, for tests. `counters`, if it is not
// null, gets what was counted.
//
// The caller promises:
// `counters` is null or points to an `fw_counters`.
int32_t fw_verify(struct fw_counters *counters);

// The version of this interface that the library has: `FW_VERSION` of its header.
uint32_t fw_version(void);

// Whether `fw_bring_up` would accept this platform, as far as can be seen without calling it.
//
// The caller promises:
// `platform` is null, or points to a `fw_platform` whose `size` and `version` can be read, and to
// as many bytes as `size` says.
int32_t fw_check_platform(const struct fw_platform *platform);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FRAMEWRIGHT_H */
