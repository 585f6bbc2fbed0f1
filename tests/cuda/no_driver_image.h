/* SPDX-License-Identifier: Apache-2.0
 *
 * What a driver finds in an image of kernels (no_driver_image.c).
 */
#ifndef TEST_CUDA_NO_DRIVER_IMAGE_H
#define TEST_CUDA_NO_DRIVER_IMAGE_H

#include <stdbool.h>

/* Of an image and a GPU: whether it runs there, and its code, NULL where it is to be compiled
 * first. What is no image (but PTX, or what NVRTC made) runs, and nothing is known of it. */
typedef struct no_driver_code {
    bool is_image, runs;
    const char *elf;
} no_driver_code;

no_driver_code no_driver_find_code(const void *image, int arch);

/* Bytes of shared memory that each block of a kernel has by its code; -1: there is no such one. */
long no_driver_static_shared(const char *elf, int arch, const char *kernel);

#endif
