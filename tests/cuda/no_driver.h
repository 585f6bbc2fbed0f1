/* SPDX-License-Identifier: Apache-2.0
 *
 * What a test sees and says of the driver that does nothing (no_driver.c), which it finds with
 * dlsym(driver, "no_driver_state"). Environment variables say the same to programs:
 *
 *     NO_DRIVER_VERSION=11080   of CUDA, that it reports
 *     NO_DRIVER_ARCH=75         of the GPU
 *     NO_DRIVER_GPUS=0          how many there are
 *     NO_DRIVER_MEMORY=BYTES    of the GPU, which arrays and graphs share
 *     NO_DRIVER_PINNED=BYTES    of the host that may be page-locked
 *     NO_DRIVER_FAIL=NAME       the function that fails, or a part of its name; always
 *     NO_DRIVER_FAIL_AT=N       call number N fails, counted over all functions; once
 *     NO_DRIVER_RESULT=N        with what
 */
#ifndef TEST_CUDA_NO_DRIVER_H
#define TEST_CUDA_NO_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { NO_DRIVER_ROOM = 1 << 16, NO_DRIVER_LAUNCH_BYTES = 4096 };

typedef struct no_driver {
    char launches[NO_DRIVER_ROOM];   /* of the newest capture, "name blocks threads" on each line */
    int version, arch, gpus, shared; /* shared: bytes of a block at most */
    size_t memory, used;             /* bytes of the GPU; used by arrays */
    size_t graphs;                   /* ... by graphs: so many a launch */
    size_t pinned, locked;
    const char *fail;   /* NULL: none */
    int times;          /* that it does, before there is none again; 0: always */
    atomic_long calls;  /* until now */
    long fail_at;       /* the number of the call that fails; 0: none */
    bool stays;         /* and all behind it */
    int result;         /* of what fails */
    const char *failed; /* the last that did */
    int images;         /* that were loaded */
    int compiled;       /* ... of these, without code for the GPU */
    long live;          /* contexts, memory, handles that were not given back */
} no_driver;

/* Takes back all that is out: "no_driver_forget". */
typedef void no_driver_forget_fn(void);

#endif
