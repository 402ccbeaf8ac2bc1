/* SPDX-License-Identifier: Apache-2.0
 *
 * changed-ranges FILE COPY: prints the ranges of FILE that changed since COPY was last brought up to date, and copies only them.
 *
 * The version of COPY is stored in an extended attribute of COPY, as "TREE NODE VERSION". A copy that is missing, replaced or of
 * another tree is therefore copied as a whole, and so is a file that was replaced. A version describes one file, the node: another
 * file may have the name now, in which nothing has changed since that version.
 *
 * Order: COPY's content becomes durable first, then the mark, then the attribute. After a crash in between, the next run gets the
 * same ranges again, or more.
 */
#include "byteback.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CONSUMER "changed-ranges"
#define ATTRIBUTE "user.byteback.version"

static int failed(const char *what, const char *path)
{
    fprintf(stderr, "changed-ranges: %s %s: %s\n", what, path, strerror(errno));
    return 1;
}

/* The version of the copy, and the tree and the node that it belongs to. */
static uint64_t remembered(int copy, uint64_t *tree, uint64_t *node)
{
    char text[96];
    uint64_t version;
    ssize_t len = fgetxattr(copy, ATTRIBUTE, text, sizeof text - 1);
    if (len < 0)
        return BYTEBACK_SINCE_NEVER;
    text[len] = '\0';
    if (sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64, tree, node, &version) != 3 || version == 0)
        return BYTEBACK_SINCE_NEVER;
    return version;
}

static int copy_range(struct byteback_delta *delta, const struct byteback_range *range, int copy)
{
    static char buffer[1 << 20];
    uint64_t at = range->offset, end = range->offset + range->len_bytes;

    while (at < end) {
        size_t wanted = end - at < sizeof buffer ? (size_t)(end - at) : sizeof buffer, written = 0;
        ssize_t got = byteback_delta_read(delta, buffer, wanted, at);
        if (got <= 0)
            return -1;
        while (written < (size_t)got) {
            ssize_t more = pwrite(copy, buffer + written, (size_t)got - written, (off_t)(at + written));
            if (more < 0 && errno != EINTR)
                return -1;
            if (more > 0)
                written += (size_t)more;
        }
        at += (uint64_t)got;
    }
    return 0;
}

int main(int count, char **arguments)
{
    struct byteback_delta *delta;
    struct byteback_info info;
    struct byteback_range range;
    char text[96];
    uint64_t since, tree = 0, node = 0;
    int file, copy, next, len;

    if (count != 3) {
        fprintf(stderr, "usage: changed-ranges FILE COPY\n");
        return 2;
    }
    file = open(arguments[1], O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return failed("cannot open", arguments[1]);
    copy = open(arguments[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (copy < 0)
        return failed("cannot open", arguments[2]);
    since = remembered(copy, &tree, &node);
    if (byteback_delta_open(file, CONSUMER, since, &delta) == 0 && since != BYTEBACK_SINCE_NEVER &&
        (byteback_delta_info(delta)->tree != tree || byteback_delta_info(delta)->node != node)) {
        /* A version of another tree or node means nothing here, even if the number exists. */
        byteback_delta_close(delta);
        if (byteback_delta_open(file, CONSUMER, BYTEBACK_SINCE_NEVER, &delta) != 0)
            delta = NULL;
    }
    if (delta == NULL) {
        fprintf(stderr, "changed-ranges: %s: %s\n", arguments[1], byteback_strerror(errno));
        return 1;
    }
    info = *byteback_delta_info(delta);
    if (info.state == BYTEBACK_STATE_WHOLE)
        printf("the whole file: %s\n", byteback_reason(info.reason));
    /* The length first: bytes beyond the old end that are in no range are zeros. */
    if (ftruncate(copy, (off_t)info.size_bytes) != 0)
        return failed("cannot set the length of", arguments[2]);
    while ((next = byteback_delta_next(delta, &range)) == 1) {
        printf("%" PRIu64 " + %" PRIu64 "\n", range.offset, range.len_bytes);
        if (copy_range(delta, &range, copy) != 0)
            return failed("cannot copy to", arguments[2]);
    }
    if (next != 0)
        return failed("cannot read the changes of", arguments[1]);
    if (fsync(copy) != 0)
        return failed("cannot sync", arguments[2]);
    if (byteback_delta_commit(delta) != 0)
        return failed("cannot move the mark of", arguments[1]);
    len = snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %" PRIu64, info.tree, info.node, info.version);
    if (fsetxattr(copy, ATTRIBUTE, text, (size_t)len, 0) != 0 || fsync(copy) != 0)
        return failed("cannot store the version in", arguments[2]);
    return 0;
}
