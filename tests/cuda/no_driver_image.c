/* SPDX-License-Identifier: Apache-2.0
 *
 * Images of kernels as nvcc makes them, read as a driver does: a header, then for each family code
 * (ELF) or text that a driver compiles (PTX), each with a header of its own.
 */
#include "no_driver_image.h"

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PTX = 1, ELF = 2, EXACT = 0x100000, RESERVED = 1024 };

typedef struct image_header {
    uint32_t magic;
    uint16_t version, header;
    uint64_t bytes;
} image_header;

typedef struct part_header {
    uint16_t kind, version;
    uint32_t header;
    uint64_t bytes;
    uint32_t unused[3], arch, more[2], flags; /* EXACT: for this GPU and no later one */
} part_header;

no_driver_code no_driver_find_code(const void *image, int arch)
{
    static const char magic[] = "\x50\xed\x55\xba";
    const char *at = image;
    image_header head;
    no_driver_code found = {.is_image = true};
    if (strncmp(at, magic, sizeof magic - 1) != 0)
        return (no_driver_code){.runs = true};
    memcpy(&head, at, sizeof head);
    const char *end = at + head.header + head.bytes;
    for (at += head.header; at < end;) {
        part_header part;
        memcpy(&part, at, sizeof part);
        int of = (int)part.arch;
        bool same = part.flags & EXACT ? of == arch : of / 10 == arch / 10 && of <= arch;
        if (part.kind == ELF && same)
            found.elf = at + part.header;
        found.runs = found.runs || (part.kind == ELF ? same : part.kind == PTX && of <= arch);
        at += part.header + part.bytes;
    }
    return found;
}

/* The section of this name; false: there is none. */
static bool find_section(const char *elf, const char *name, Elf64_Shdr *section)
{
    Elf64_Ehdr head;
    Elf64_Shdr names;
    memcpy(&head, elf, sizeof head);
    memcpy(&names, elf + head.e_shoff + head.e_shstrndx * sizeof names, sizeof names);
    for (int i = 0; i < head.e_shnum; i++) {
        memcpy(section, elf + head.e_shoff + (size_t)i * sizeof *section, sizeof *section);
        if (!strcmp(elf + names.sh_offset + section->sh_name, name))
            return true;
    }
    return false;
}

long no_driver_static_shared(const char *elf, int arch, const char *kernel)
{
    char name[128];
    Elf64_Shdr section;
    snprintf(name, sizeof name, ".text.%s", kernel);
    if (!find_section(elf, name, &section))
        return -1;
    snprintf(name, sizeof name, ".nv.shared.%s", kernel);
    long bytes = find_section(elf, name, &section) ? (long)section.sh_size : 0;
    /* since sm_90 with what the driver takes for itself, which it does not count as a block's */
    return arch >= 90 && bytes >= RESERVED ? bytes - RESERVED : bytes;
}
