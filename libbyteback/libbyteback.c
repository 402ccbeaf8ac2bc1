/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of byteback.h: thin wrappers of the ioctls that docs/interface.md describes.
 */
#include "byteback.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct byteback_delta {
    int fd;
    struct byteback_info info;
    uint64_t position;                  /* where the next page begins; BYTEBACK_NO_MORE after the last one */
    uint32_t given;                     /* ranges of the page that were returned */
    struct byteback_ioctl_getdiff page;
    struct byteback_ioctl_read piece;   /* too large for the stack of a small thread */
};

static int call(int fd, unsigned long number, void *argument)
{
    int done;
    do
        done = ioctl(fd, number, argument);
    while (done < 0 && errno == EINTR);
    return done < 0 ? -1 : 0;
}

int byteback_delta_open(int fd, const char *consumer, uint64_t since, struct byteback_delta **delta)
{
    struct byteback_ioctl_open request;
    struct byteback_delta *made;
    size_t len;

    if (delta == NULL || consumer == NULL) {
        errno = EINVAL;
        return -1;
    }
    *delta = NULL;
    len = strlen(consumer);
    if (len == 0 || len >= sizeof request.consumer) {
        errno = EINVAL;
        return -1;
    }
    /* Allocated before anything is frozen: a later failure would have to be undone. */
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return -1;
    memset(&request, 0, sizeof request);
    request.size = (uint32_t)sizeof request;
    request.version = BYTEBACK_ABI_VERSION;
    request.since = since;
    memcpy(request.consumer, consumer, len);
    if (call(fd, BYTEBACK_DELTA_OPEN, &request) != 0) {
        int error = errno;
        free(made);
        errno = error;
        return -1;
    }
    made->fd = fd;
    made->info.tree = request.tree;
    made->info.node = request.node;
    made->info.since = request.version_since;
    made->info.version = request.version_now;
    made->info.size_bytes = request.size_bytes;
    made->info.range_count = request.range_count;
    made->info.changed_bytes = request.changed_bytes;
    made->info.number = request.context;
    made->info.state = request.state;
    made->info.reason = request.reason;
    byteback_delta_seek(made, 0);
    *delta = made;
    return 0;
}

const struct byteback_info *byteback_delta_info(const struct byteback_delta *delta)
{
    return &delta->info;
}

void byteback_delta_seek(struct byteback_delta *delta, uint64_t offset)
{
    delta->position = offset;
    delta->given = 0;
    delta->page.count = 0;
}

int byteback_delta_next(struct byteback_delta *delta, struct byteback_range *range)
{
    while (delta->given >= delta->page.count) {
        struct byteback_ioctl_getdiff *page = &delta->page;
        uint64_t position = delta->position;
        if (position == BYTEBACK_NO_MORE)
            return 0;
        memset(page, 0, sizeof *page);
        page->size = (uint32_t)sizeof *page;
        page->version = BYTEBACK_ABI_VERSION;
        page->context = delta->info.number;
        page->position = position;
        delta->given = 0;
        if (call(delta->fd, BYTEBACK_DELTA_GETDIFF, page) != 0) {
            page->count = 0;
            return -1;
        }
        if (page->count > BYTEBACK_RANGES_MAX || (page->next != BYTEBACK_NO_MORE && page->next <= position)) {
            page->count = 0;
            errno = EPROTO;
            return -1;
        }
        delta->position = page->next;
    }
    *range = delta->page.ranges[delta->given++];
    return 1;
}

ssize_t byteback_delta_read(struct byteback_delta *delta, void *buffer, size_t len_bytes, uint64_t offset)
{
    struct byteback_ioctl_read *piece = &delta->piece;
    size_t done = 0;

    if (len_bytes > (size_t)SSIZE_MAX)
        len_bytes = (size_t)SSIZE_MAX;
    while (done < len_bytes) {
        size_t wanted = len_bytes - done;
        if (wanted > BYTEBACK_READ_BYTES_MAX)
            wanted = BYTEBACK_READ_BYTES_MAX;
        /* The kernel copies the whole structure, but the content of data does not matter. */
        piece->size = (uint32_t)sizeof *piece;
        piece->version = BYTEBACK_ABI_VERSION;
        piece->context = delta->info.number;
        piece->offset = offset + done;
        piece->len_bytes = (uint32_t)wanted;
        piece->reserved = 0;
        if (call(delta->fd, BYTEBACK_DELTA_READ, piece) != 0)
            return -1;
        if (piece->len_bytes > wanted) {
            errno = EPROTO;
            return -1;
        }
        memcpy((char *)buffer + done, piece->data, piece->len_bytes);
        done += piece->len_bytes;
        if (piece->len_bytes < wanted)
            break;
    }
    return (ssize_t)done;
}

static int end(struct byteback_delta *delta, uint32_t flags)
{
    struct byteback_ioctl_close request;
    int done, error;

    memset(&request, 0, sizeof request);
    request.size = (uint32_t)sizeof request;
    request.version = BYTEBACK_ABI_VERSION;
    request.context = delta->info.number;
    request.flags = flags;
    done = call(delta->fd, BYTEBACK_DELTA_CLOSE, &request);
    error = errno;
    if (done != 0 && flags != 0) {
        /* The mark stays, but the delta ends. */
        request.flags = 0;
        (void)call(delta->fd, BYTEBACK_DELTA_CLOSE, &request);
    }
    free(delta);
    errno = error;
    return done;
}

int byteback_delta_commit(struct byteback_delta *delta)
{
    return end(delta, BYTEBACK_CLOSE_SAVED);
}

void byteback_delta_close(struct byteback_delta *delta)
{
    int error = errno;
    if (delta != NULL)
        (void)end(delta, 0);
    errno = error;
}

const char *byteback_strerror(int error)
{
    switch (error) {
    case ENOTTY:
    case EOPNOTSUPP:
        return "the file is not in a folder mounted by Byteback; mount its folder first: byteback mount DIR";
    case ENOENT:
        return "the file was removed, or the log does not know it; save it whole";
    case EBADF:
        return "the file must be open for reading";
    case EMFILE:
    case ENFILE:
        return "too many files are frozen; close some first";
    case EDQUOT:
        return "too many consumers, of this user or in total; use fewer names, or drop some (byteback consumers drop)";
    case EINVAL:
        return "invalid argument; a consumer's name must have 1 to 63 bytes without control characters";
    case EPROTONOSUPPORT:
    case EPROTO:
        return "the folder's daemon speaks another protocol version; restart it: byteback umount, then byteback mount";
    case EIO:
        return "the frozen state is lost or the log failed; see the daemon's log";
    default:
        return strerror(error);
    }
}

const char *byteback_reason(uint32_t reason)
{
    switch (reason) {
    case BYTEBACK_REASON_NONE:
        return "the changed ranges are known";
    case BYTEBACK_REASON_CREATED:
        return "it did not exist then";
    case BYTEBACK_REASON_NO_MARK:
        return "that version is unknown";
    case BYTEBACK_REASON_UNTRACKED:
        return "it was changed, bypassing the mount";
    case BYTEBACK_REASON_INTERRUPTED:
        return "it was being changed when tracking was interrupted";
    case BYTEBACK_REASON_UNSAVED:
        return "it could not be saved last time";
    default:
        return "a reason unknown to this version of the library";
    }
}
