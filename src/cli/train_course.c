/* SPDX-License-Identifier: Apache-2.0
 *
 * The course of a training. When all points are taken, two become one.
 */
#include "cli/train_course.h"

#include "base/error.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void course_free(train_course *h)
{
    free(h->valid);
    *h = (train_course){0};
}

static void halve(train_course *h)
{
    for (size_t i = 0; i < CURVE / 2; i++)
        h->points[i] = (curve_point){h->points[2 * i].sum + h->points[2 * i + 1].sum,
                                     h->points[2 * i].n + h->points[2 * i + 1].n};
    memset(h->points + CURVE / 2, 0, CURVE / 2 * sizeof *h->points);
    h->width *= 2;
}

void course_add(train_course *h, double loss)
{
    h->width = h->width ? h->width : 1;
    if (h->steps == h->width * CURVE)
        halve(h);
    curve_point *p = &h->points[h->steps++ / h->width];
    p->sum += loss;
    p->n++;
}

bool course_validate(train_course *h, int64_t step, double loss)
{
    validation *more = realloc(h->valid, (h->n_valid + 1) * sizeof *more);
    if (!more)
        return false;
    h->valid = more;
    h->valid[h->n_valid++] = (validation){step, loss};
    return true;
}

size_t course_points(const train_course *h)
{
    return h->steps ? (size_t)((h->steps - 1) / h->width) + 1 : 0;
}

double course_mean(const train_course *h, size_t point)
{
    return h->points[point].sum / (double)h->points[point].n;
}

const validation *course_best(const train_course *h, size_t *since)
{
    const validation *best = NULL;
    for (size_t i = 0; i < h->n_valid; i++)
        if (!best || h->valid[i].loss < best->loss)
            best = &h->valid[i];
    *since = best ? h->n_valid - 1 - (size_t)(best - h->valid) : 0;
    return best;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool add_pair(cJSON *list, double a, double b)
{
    const double pair[] = {a, b};
    return cJSON_AddItemToArray(list, cJSON_CreateDoubleArray(pair, 2));
}

char *course_write(const train_course *h)
{
    cJSON *root = cJSON_CreateObject(), *points = cJSON_AddArrayToObject(root, "points");
    cJSON *valid = cJSON_AddArrayToObject(root, "validations");
    bool ok = points && valid && cJSON_AddNumberToObject(root, "width", (double)h->width);
    for (size_t i = 0; ok && i < course_points(h); i++)
        ok = add_pair(points, h->points[i].sum, (double)h->points[i].n);
    for (size_t i = 0; ok && i < h->n_valid; i++)
        ok = add_pair(valid, (double)h->valid[i].step, h->valid[i].loss);
    char *text = ok ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

static qn_status read_pair(const qn__json_at *pair, double out[2], qn_error *err)
{
    qn__json_at item;
    int n = 0;
    for (bool any = qn__json_first(pair, &item); any; any = qn__json_next(&item))
        if (n == 2 || qn__json_as_number(&item, -1e300, 1e300, &out[n++], err) != QN_OK)
            return qn__json_fail(pair, QN_FORMAT, err, "not two numbers");
    return n == 2 ? QN_OK : qn__json_fail(pair, QN_FORMAT, err, "not two numbers");
}

static qn_status read_points(train_course *h, const qn__json_at *points, qn_error *err)
{
    qn__json_at at;
    double pair[2];
    size_t n = 0;
    for (bool any = qn__json_first(points, &at); any; any = qn__json_next(&at)) {
        if (read_pair(&at, pair, err) != QN_OK)
            return err->code;
        if (n == CURVE || !(pair[1] >= 1 && pair[1] <= (double)h->width))
            return qn__json_fail(&at, QN_FORMAT, err, "no point of this curve");
        h->points[n++] = (curve_point){pair[0], (int64_t)pair[1]};
        h->steps += (int64_t)pair[1];
    }
    return QN_OK;
}

qn_status course_read(train_course *h, const char *text, qn_error *err)
{
    cJSON *tree = NULL;
    double pair[2];
    if (!*text)
        return QN_OK;
    if (qn__json_parse(&tree, "the checkpoint's note", text, strlen(text), err) != QN_OK)
        return err->code;
    qn__json_at root = qn__json_root("the checkpoint's note", tree), points, valid, at;
    if (qn__json_get_int(&root, "width", 0, INT64_C(1) << 50, &h->width, err) == QN_OK &&
        qn__json_get_array(&root, "points", &points, err) == QN_OK &&
        read_points(h, &points, err) == QN_OK &&
        qn__json_get_array(&root, "validations", &valid, err) == QN_OK)
        for (bool any = qn__json_first(&valid, &at); any && read_pair(&at, pair, err) == QN_OK;
             any = qn__json_next(&at))
            if (!course_validate(h, (int64_t)pair[0], pair[1]))
                qn__fail_memory(err, "a course");
    cJSON_Delete(tree);
    return err->code;
}

/* ---- one line -------------------------------------------------------------------------------- */

/* The mean of the points that fall on column `at` of `width`. */
static double column_mean(const train_course *h, size_t at, size_t width)
{
    size_t n = course_points(h), begin = at * n / width, end = (at + 1) * n / width;
    double sum = 0;
    for (size_t i = begin; i < end; i++)
        sum += course_mean(h, i);
    return sum / (double)(end - begin);
}

void course_spark(const train_course *h, size_t width, char *out, size_t room)
{
    size_t n = course_points(h), used = 0;
    width = n < width ? n : width;
    double low = 0, high = 0;
    for (size_t i = 0; i < width; i++) {
        double y = column_mean(h, i, width);
        low = i == 0 || y < low ? y : low;
        high = i == 0 || y > high ? y : high;
    }
    *out = 0;
    for (size_t i = 0; i < width && used + 4 < room; i++) {
        double y = column_mean(h, i, width);
        int level = high > low ? (int)((y - low) / (high - low) * 7.999) : 0;
        used += (size_t)snprintf(out + used, room - used, "\xe2\x96%c", 0x81 + level);
    }
}
