/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry of user primitives; see quern/extend.h. Entries never move or go before the device
 * does, so that nodes, plans and programs may point at them.
 */
#include "core/primitive.h"

#include "base/error.h"
#include "base/sized.h"
#include "core/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct qn__shared_object {
    void *handle;
    struct qn__shared_object *next;
} qn__shared_object;

void qn__primitives_begin(qn__primitives *list)
{
    pthread_mutex_init(&list->lock, NULL);
    list->newest = NULL;
    list->objects = NULL;
}

static void free_primitive(qn_primitive *p)
{
    if (!p)
        return;
    free((char *)p->def.name);
    free(p->library);
    free(p);
}

void qn__primitives_end(qn__primitives *list)
{
    for (qn_primitive *p = list->newest, *next; p; p = next) {
        next = p->next;
        free_primitive(p);
    }
    for (qn__shared_object *o = list->objects, *next; o; o = next) {
        next = o->next;
        dlclose(o->handle);
        free(o);
    }
    pthread_mutex_destroy(&list->lock);
}

/* ---- registering and finding ------------------------------------------------------------------
 */

static bool is_word(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    return n > 0 && n <= 64 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
}

static qn_status check_def(const char *library, const qn_primitive_def *def, qn_error *err)
{
    if (!is_word(library) || !is_word(def->name))
        return qn__fail(err, QN_INVALID,
                        "a primitive's library and name are 1 to 64 letters, digits, "
                        "and . _ -");
    const char *bad = def->version < 1 ? "version is below 1"
                      : def->n_inputs < 1 || def->n_inputs > QN_MAX_CUSTOM_INPUTS
                          ? "n_inputs is not 1 to 8"
                      : def->params_size > QN_MAX_CUSTOM_PARAMS ? "params_size is above 240"
                      : (unsigned)def->unit > QN_UNIT_WHOLE     ? "unit is unknown"
                      : def->scratch > (size_t)1 << 30          ? "scratch is above 1 GiB"
                      : !def->cpu && !def->cuda                 ? "there is no kernel"
                                                                : NULL;
    return bad ? qn__fail(err, QN_INVALID, "primitive %s/%s: %s", library, def->name, bad) : QN_OK;
}

static qn_status check_cuda(const char *library, const qn_primitive_def *def, qn_error *err)
{
    qn_cuda_kernel k;
    if (!def->cuda)
        return QN_OK;
    if (qn__sized_in(&k, sizeof k, def->cuda, "qn_cuda_kernel", err) != QN_OK)
        return err->code;
    const char *bad = !k.source == !k.ptx   ? "source or ptx is wanted, one of them"
                      : !k.name || !*k.name ? "the kernel has no name"
                                            : NULL;
    return bad ? qn__fail(err, QN_INVALID, "primitive %s/%s: cuda: %s", library, def->name, bad)
               : QN_OK;
}

/* Under the lock. version 0: the newest. */
static qn_primitive *find_locked(qn__primitives *list, const char *library, const char *name,
                                 int version)
{
    qn_primitive *found = NULL;
    for (qn_primitive *p = list->newest; p; p = p->next)
        if (!strcmp(p->library, library) && !strcmp(p->def.name, name) &&
            (version ? p->def.version == version : !found || p->def.version > found->def.version))
            found = p;
    return found;
}

qn_status qn_primitive_register(qn_device *device, const char *library,
                                const qn_primitive_def *given, qn_error *err)
{
    qn_error own = {0};
    qn_primitive_def copy, *def = &copy;
    qn__primitives *list = &device->primitives;
    err = err ? err : &own;
    if (qn__sized_in(&copy, sizeof copy, given, "qn_primitive_def", err) != QN_OK ||
        check_def(library, def, err) != QN_OK || check_cuda(library, def, err) != QN_OK)
        return err->code;
    qn_primitive *p = calloc(1, sizeof *p);
    if (p) {
        p->def = *def;
        p->def.name = strdup(def->name);
        p->library = strdup(library);
        p->device = device;
    }
    if (!p || !p->def.name || !p->library) {
        free_primitive(p);
        return qn__fail_memory(err, "a primitive");
    }
    pthread_mutex_lock(&list->lock);
    bool twice = find_locked(list, library, def->name, def->version) != NULL;
    if (!twice) {
        p->next = list->newest;
        list->newest = p;
    }
    pthread_mutex_unlock(&list->lock);
    if (!twice)
        return QN_OK;
    free_primitive(p);
    return qn__fail(err, QN_INVALID, "primitive %s/%s version %d is registered already", library,
                    def->name, def->version);
}

/* "there are a/b 1, a/c 2", cut where it gets long. Under the lock. */
static void name_known(const qn__primitives *list, char *text, size_t room)
{
    size_t n = (size_t)snprintf(text, room, list->newest ? "there are" : "there are none");
    for (const qn_primitive *p = list->newest; p && n + 150 < room; p = p->next)
        n += (size_t)snprintf(text + n, room - n, "%s %s/%s %d", p == list->newest ? "" : ",",
                              p->library, p->def.name, p->def.version);
}

const qn_primitive *qn_primitive_find(qn_device *device, const char *library, const char *name,
                                      int version, qn_error *err)
{
    char known[400], wanted[24] = "";
    qn__primitives *list = &device->primitives;
    pthread_mutex_lock(&list->lock);
    const qn_primitive *p = find_locked(list, library, name, version);
    name_known(list, known, sizeof known);
    pthread_mutex_unlock(&list->lock);
    if (version)
        snprintf(wanted, sizeof wanted, " version %d", version);
    if (!p)
        qn__fail(err, QN_NOT_FOUND, "no primitive %.60s/%.60s%s; %s", library, name, wanted, known);
    return p;
}

/* ---- shared objects
 * ------------------------------------------------------------------------------ */

static qn_status register_library(qn_device *device, const qn_library *given, const char *path,
                                  qn_error *err)
{
    qn_library library;
    if (qn__sized_in(&library, sizeof library, given, "qn_library", err) != QN_OK)
        return err->code;
    if (library.n < 0 || (library.n && !library.primitives))
        return qn__fail(err, QN_INVALID, "%s: a library without primitives", path);
    for (int i = 0; i < library.n;
         i++) { /* they are as far apart as its compiler's struct is large */
        const char *at = (const char *)library.primitives + (size_t)i * library.primitives->size;
        if (qn_primitive_register(device, library.name, (const qn_primitive_def *)at, err) != QN_OK)
            return err->code;
    }
    return QN_OK;
}

qn_status qn_device_load_library(qn_device *device, const char *path, const char *symbol,
                                 qn_error *err)
{
    qn_error own = {0};
    err = err ? err : &own;
    symbol = symbol ? symbol : "quern_library";
    qn__shared_object *o = malloc(sizeof *o);
    if (!o)
        return qn__fail_memory(err, "a library");
    o->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const qn_library *library = o->handle ? dlsym(o->handle, symbol) : NULL;
    if (!library) {
        const char *why = o->handle ? NULL : dlerror();
        qn__fail(err, o->handle ? QN_FORMAT : QN_IO, "%.200s: %.250s%s", path,
                 why ? why : "it exports no ", why ? "" : symbol);
        if (o->handle)
            dlclose(o->handle);
        free(o);
        return err->code;
    }
    /* What is registered points into it, also where a later primitive is refused: it stays open. */
    pthread_mutex_lock(&device->primitives.lock);
    o->next = device->primitives.objects;
    device->primitives.objects = o;
    pthread_mutex_unlock(&device->primitives.lock);
    return register_library(device, library, path, err);
}
