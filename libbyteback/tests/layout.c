/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the layout that both sides must agree on; a test of the crate byteback-ioctl compares it with its own.
 */
#include "byteback.h"

#include <stdio.h>

#define NUMBER(name) printf(#name " %llu\n", (unsigned long long)(name))
#define SIZE(type) printf("sizeof " #type " %llu\n", (unsigned long long)sizeof(struct type))
#define FIELD(type, field)                                                                                               \
    printf("offsetof " #type "." #field " %llu\n", (unsigned long long)offsetof(struct type, field))

int main(void)
{
    NUMBER(BYTEBACK_DELTA_OPEN);
    NUMBER(BYTEBACK_DELTA_GETDIFF);
    NUMBER(BYTEBACK_DELTA_READ);
    NUMBER(BYTEBACK_DELTA_CLOSE);
    NUMBER(BYTEBACK_ABI_VERSION);
    NUMBER(BYTEBACK_CONSUMER_BYTES);
    NUMBER(BYTEBACK_RANGES_MAX);
    NUMBER(BYTEBACK_READ_BYTES_MAX);
    NUMBER(BYTEBACK_NO_MORE);
    NUMBER(BYTEBACK_CLOSE_SAVED);
    NUMBER(BYTEBACK_STATE_RANGES);
    NUMBER(BYTEBACK_STATE_WHOLE);
    NUMBER(BYTEBACK_REASON_NONE);
    NUMBER(BYTEBACK_REASON_CREATED);
    NUMBER(BYTEBACK_REASON_NO_MARK);
    NUMBER(BYTEBACK_REASON_UNTRACKED);
    NUMBER(BYTEBACK_REASON_INTERRUPTED);
    NUMBER(BYTEBACK_REASON_UNSAVED);
    NUMBER(BYTEBACK_REASON_OTHER);
    SIZE(byteback_ioctl_open);
    FIELD(byteback_ioctl_open, size);
    FIELD(byteback_ioctl_open, version);
    FIELD(byteback_ioctl_open, since);
    FIELD(byteback_ioctl_open, flags);
    FIELD(byteback_ioctl_open, reserved0);
    FIELD(byteback_ioctl_open, consumer);
    FIELD(byteback_ioctl_open, context);
    FIELD(byteback_ioctl_open, tree);
    FIELD(byteback_ioctl_open, node);
    FIELD(byteback_ioctl_open, version_since);
    FIELD(byteback_ioctl_open, version_now);
    FIELD(byteback_ioctl_open, size_bytes);
    FIELD(byteback_ioctl_open, range_count);
    FIELD(byteback_ioctl_open, changed_bytes);
    FIELD(byteback_ioctl_open, state);
    FIELD(byteback_ioctl_open, reason);
    FIELD(byteback_ioctl_open, reserved);
    SIZE(byteback_ioctl_getdiff);
    FIELD(byteback_ioctl_getdiff, size);
    FIELD(byteback_ioctl_getdiff, version);
    FIELD(byteback_ioctl_getdiff, context);
    FIELD(byteback_ioctl_getdiff, position);
    FIELD(byteback_ioctl_getdiff, next);
    FIELD(byteback_ioctl_getdiff, count);
    FIELD(byteback_ioctl_getdiff, reserved);
    FIELD(byteback_ioctl_getdiff, ranges);
    SIZE(byteback_ioctl_read);
    FIELD(byteback_ioctl_read, size);
    FIELD(byteback_ioctl_read, version);
    FIELD(byteback_ioctl_read, context);
    FIELD(byteback_ioctl_read, offset);
    FIELD(byteback_ioctl_read, len_bytes);
    FIELD(byteback_ioctl_read, reserved);
    FIELD(byteback_ioctl_read, data);
    SIZE(byteback_ioctl_close);
    FIELD(byteback_ioctl_close, size);
    FIELD(byteback_ioctl_close, version);
    FIELD(byteback_ioctl_close, context);
    FIELD(byteback_ioctl_close, flags);
    FIELD(byteback_ioctl_close, reserved);
    return 0;
}
