/* SPDX-License-Identifier: Apache-2.0
 *
 * A C++ program that names every function of the library: it links only if the header declares them as C. A test of the crate
 * byteback-ioctl builds and runs it.
 */
#include "byteback.h"
#include "byteback.h"

#include <cerrno>
#include <cstring>

int main()
{
    byteback_delta *delta = nullptr;
    byteback_range range{};
    char byte = 0;

    // An invalid descriptor is refused.
    if (byteback_delta_open(-1, "linkage", BYTEBACK_SINCE_NEVER, &delta) == 0 || delta != nullptr || errno == 0)
        return 1;
    byteback_delta_close(delta);
    if (std::strlen(byteback_strerror(EIO)) == 0 || std::strlen(byteback_reason(BYTEBACK_REASON_CREATED)) == 0)
        return 2;
    if (delta != nullptr) {
        byteback_delta_seek(delta, 0);
        if (byteback_delta_next(delta, &range) == 1)
            (void)byteback_delta_read(delta, &byte, sizeof byte, range.offset);
        if (byteback_delta_info(delta)->state == BYTEBACK_STATE_WHOLE)
            return byteback_delta_commit(delta);
    }
    return 0;
}
