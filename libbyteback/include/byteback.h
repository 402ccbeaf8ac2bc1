/* SPDX-License-Identifier: Apache-2.0
 *
 * byteback.h: the changed ranges of a file in a folder mounted by Byteback.
 *
 * A program that has such a file open for reading freezes its current state, which does not block writers. It then gets the ranges
 * that changed since its own mark of the file, reads the frozen bytes at its own pace, and moves the mark when they are saved:
 *
 *     struct byteback_delta *delta;
 *     struct byteback_range range;
 *     if (byteback_delta_open(fd, "my-cloud", BYTEBACK_SINCE_MARK, &delta) != 0)
 *         return -1;                                  // errno: see byteback_strerror
 *     set_length_of_the_copy(byteback_delta_info(delta)->size_bytes);
 *     while (byteback_delta_next(delta, &range) == 1)
 *         ...                                         // byteback_delta_read, send
 *     return byteback_delta_commit(delta);            // or byteback_delta_close: the mark stays
 *
 * Set the length of the copy first: bytes beyond its old end that are in no range are zeros.
 *
 * The library keeps no global state. A delta may be used by one thread at a time. It lives at most as long as the open file
 * description from which it was opened; keep the descriptor open until then.
 *
 * C99 and C++; Linux.
 */
#ifndef BYTEBACK_H
#define BYTEBACK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The library ------------------------------------------------------------------------------------------------------- */

/* Start of the changes to report: the consumer's mark of this file. */
#define BYTEBACK_SINCE_MARK UINT64_C(0)
/* Report everything: for a program that has no copy. */
#define BYTEBACK_SINCE_NEVER UINT64_MAX

/* How changes are reported. */
#define BYTEBACK_STATE_RANGES UINT32_C(1) /* as ranges */
#define BYTEBACK_STATE_WHOLE UINT32_C(2)  /* the whole file counts as changed, as one range */

/* Why the whole file is reported as changed. */
#define BYTEBACK_REASON_NONE UINT32_C(0)        /* it is not: the ranges are known */
#define BYTEBACK_REASON_CREATED UINT32_C(1)     /* the file did not exist at that version */
#define BYTEBACK_REASON_NO_MARK UINT32_C(2)     /* no mark, or a version that is unknown */
#define BYTEBACK_REASON_UNTRACKED UINT32_C(3)   /* it was changed, bypassing the mount */
#define BYTEBACK_REASON_INTERRUPTED UINT32_C(4) /* it was being changed when tracking was interrupted */
#define BYTEBACK_REASON_UNSAVED UINT32_C(5)     /* a consumer could not save it last time */
#define BYTEBACK_REASON_OTHER UINT32_C(255)     /* a reason that has no code here */

/* A frozen file and what changed in it. */
struct byteback_delta;

/* Properties of a frozen file. */
struct byteback_info {
    uint64_t tree;          /* the history that versions belong to; versions of another tree mean nothing */
    uint64_t node;          /* the file, as long as it exists; a rename does not change it */
    uint64_t since;         /* the version since which changes are reported; 0: everything */
    uint64_t version;       /* the version that was frozen */
    uint64_t size_bytes;    /* the length of the frozen file */
    uint64_t range_count;   /* number of changed ranges */
    uint64_t changed_bytes; /* bytes in these ranges */
    uint64_t number;        /* the frozen file is also .byteback/delta/NUMBER in the root of the mount, for mmap or sendfile */
    uint32_t state;         /* BYTEBACK_STATE_... */
    uint32_t reason;        /* BYTEBACK_REASON_... */
};

/* A changed range, in bytes. */
struct byteback_range {
    uint64_t offset;
    uint64_t len_bytes; /* never 0 */
};

/* Freezes the file that fd has open for reading.
 * consumer: the name of the calling program, 1 to 63 bytes of UTF-8 without control characters. Each user has a separate set of names.
 * since: a version, BYTEBACK_SINCE_MARK or BYTEBACK_SINCE_NEVER. Changes since the mark are exact; for any other version more may be
 * reported than changed since then, never less. A version is valid for its own node only: a program that opens the file by name must
 * compare info.node with the node of its copy, because another file may have been moved there.
 * Returns 0, or -1 with errno; *delta is then NULL. */
int byteback_delta_open(int fd, const char *consumer, uint64_t since, struct byteback_delta **delta);

/* Properties of the frozen file; valid until the delta ends. */
const struct byteback_info *byteback_delta_info(const struct byteback_delta *delta);

/* The next changed range, in ascending order. Returns 1, 0 after the last one, or -1 with errno. */
int byteback_delta_next(struct byteback_delta *delta, struct byteback_range *range);

/* Makes the next range the first one that has bytes at or after offset, without its bytes before offset. */
void byteback_delta_seek(struct byteback_delta *delta, uint64_t offset);

/* Reads frozen bytes. Returns the number of bytes read, less than len_bytes only at the end of the file, or -1 with errno. */
ssize_t byteback_delta_read(struct byteback_delta *delta, void *buffer, size_t len_bytes, uint64_t offset);

/* Moves the consumer's mark of the file to the frozen state, durably; call it when that is saved. Ends the delta in any case.
 * Returns 0, or -1 with errno: the mark then stays, and the same changes are reported again next time. */
int byteback_delta_commit(struct byteback_delta *delta);

/* Ends the delta; the mark stays. NULL is allowed. Preserves errno. */
void byteback_delta_close(struct byteback_delta *delta);

/* The meaning of an errno of these calls, and what to do; never NULL. */
const char *byteback_strerror(int error);

/* A reason in words; never NULL. */
const char *byteback_reason(uint32_t reason);

/* ---- The ioctls, for programs that do not use the library ---------------------------------------------------------------------
 *
 * Every structure begins with its own size and the version; reserved fields are zero. The program fills the fields marked "in", the
 * mount those marked "out". See docs/interface.md. */

#define BYTEBACK_ABI_VERSION UINT32_C(1)
#define BYTEBACK_CONSUMER_BYTES 64 /* with the NUL */
#define BYTEBACK_RANGES_MAX 1000
#define BYTEBACK_READ_BYTES_MAX 16000
#define BYTEBACK_NO_MORE UINT64_MAX
#define BYTEBACK_CLOSE_SAVED UINT32_C(1)

struct byteback_ioctl_open {
    uint32_t size;          /* in */
    uint32_t version;       /* in */
    uint64_t since;         /* in */
    uint32_t flags;         /* in: 0 */
    uint32_t reserved0;
    char consumer[BYTEBACK_CONSUMER_BYTES]; /* in: padded with NULs */
    uint64_t context;       /* out */
    uint64_t tree;          /* out */
    uint64_t node;          /* out */
    uint64_t version_since; /* out */
    uint64_t version_now;   /* out */
    uint64_t size_bytes;    /* out */
    uint64_t range_count;   /* out */
    uint64_t changed_bytes; /* out */
    uint32_t state;         /* out */
    uint32_t reason;        /* out */
    uint64_t reserved[4];
};

struct byteback_ioctl_getdiff {
    uint32_t size;     /* in */
    uint32_t version;  /* in */
    uint64_t context;  /* in */
    uint64_t position; /* in: report only bytes at or after this offset */
    uint64_t next;     /* out: the position of the next call, or BYTEBACK_NO_MORE */
    uint32_t count;    /* out */
    uint32_t reserved;
    struct byteback_range ranges[BYTEBACK_RANGES_MAX]; /* out */
};

struct byteback_ioctl_read {
    uint32_t size;      /* in */
    uint32_t version;   /* in */
    uint64_t context;   /* in */
    uint64_t offset;    /* in */
    uint32_t len_bytes; /* in: wanted; out: got */
    uint32_t reserved;
    unsigned char data[BYTEBACK_READ_BYTES_MAX]; /* out */
};

struct byteback_ioctl_close {
    uint32_t size;    /* in */
    uint32_t version; /* in */
    uint64_t context; /* in */
    uint32_t flags;   /* in: BYTEBACK_CLOSE_SAVED or 0 */
    uint32_t reserved;
};

#define BYTEBACK_DELTA_OPEN _IOWR(0xb7, 1, struct byteback_ioctl_open)
#define BYTEBACK_DELTA_GETDIFF _IOWR(0xb7, 2, struct byteback_ioctl_getdiff)
#define BYTEBACK_DELTA_READ _IOWR(0xb7, 3, struct byteback_ioctl_read)
#define BYTEBACK_DELTA_CLOSE _IOW(0xb7, 4, struct byteback_ioctl_close)

#ifdef __cplusplus
}
#endif

#endif
