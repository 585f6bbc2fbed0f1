/* SPDX-License-Identifier: Apache-2.0
 *
 * What is found in the place of a model's file: files of other formats, what a download left
 * behind, pages that say why there was none. They are named as what they are, with what to do.
 */
#ifndef QN_BASE_RECOGNIZE_H
#define QN_BASE_RECOGNIZE_H

#include <stddef.h>

/* A phrase to stand behind "NAME: ", such as "a Git LFS pointer, ...", for a file's first bytes;
 * NULL: nothing that is known. Nothing that begins a JSON text, a safetensors file, an archive, npy
 * or a template is recognized. */
const char *qn__recognize_bytes(const char *first, size_t n);

enum { QN__RECOGNIZE_BYTES = 128 }; /* as many are enough */

/* Such a phrase for a model's directory that lacks a file: what it has instead (model.gguf, an
 * unfinished download), into text[0..room), which becomes "" where there is nothing to say. */
void qn__recognize_directory(const char *directory, char *text, size_t room);

#endif
