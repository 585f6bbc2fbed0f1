/* SPDX-License-Identifier: Apache-2.0
 *
 * A training on one page of HTML, which needs nothing else: curves as SVG, the options, samples.
 */
#include "cli/train.h"

#include "base/buffers.h"
#include "base/error.h"
#include "base/file.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 720, HEIGHT = 240, LEFT = 56, BELOW = 24, TOP = 12, RATES = 200, PIECE = 400 };

static const char page_head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>quern train</title>\n"
    "<meta name=\"viewport\" content=\"width=device-width\"><style>\n"
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:45rem;"
    "margin:2rem auto;padding:0 1rem}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}"
    "svg{width:100%;height:auto}svg text{font-size:11px;fill:currentColor}"
    ".axis{stroke:currentColor;opacity:.4}.loss{fill:none;stroke:#2672c0;stroke-width:1.5}"
    ".valid{fill:none;stroke:#d2691e;stroke-width:1.5}.dot{fill:#d2691e}"
    "table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.2rem 1rem "
    ".2rem 0}td{white-space:pre-wrap;overflow-wrap:anywhere}.key{opacity:.7}\n"
    "</style></head><body>\n";

/* ---- text ------------------------------------------------------------------------------------ */

typedef struct page {
    qn_text text;
    bool failed; /* no memory */
} page;

static void put_piece(page *p, const char *format, ...) QN_PRINTF(2, 3);
static void put_piece(page *p, const char *format, ...)
{
    char piece[PIECE];
    va_list list;
    va_start(list, format);
    vsnprintf(piece, sizeof piece, format, list);
    va_end(list);
    p->failed |= !qn__text_puts(&p->text, piece);
}

/* Text of others, in which nothing is markup. */
static void put_escaped(page *p, const char *s)
{
    for (; *s; s++) {
        const char *as = *s == '<'   ? "&lt;"
                         : *s == '>' ? "&gt;"
                         : *s == '&' ? "&amp;"
                         : *s == '"' ? "&quot;"
                                     : NULL;
        p->failed |= as ? !qn__text_puts(&p->text, as) : !qn__text_append(&p->text, s, 1);
    }
}

static void put_row(page *p, const char *key, const char *value)
{
    put_piece(p, "<tr><td class=\"key\">");
    put_escaped(p, key);
    put_piece(p, "</td><td>");
    put_escaped(p, value);
    put_piece(p, "</td></tr>\n");
}

/* ---- curves ---------------------------------------------------------------------------------- */

/* What is drawn of values from `low` to `high` over `steps`. */
typedef struct frame {
    double low, high, steps;
} frame;

static double x_of(const frame *f, double step)
{
    return LEFT + step / f->steps * (WIDTH - LEFT - 8);
}

static double y_of(const frame *f, double value)
{
    double part = f->high > f->low ? (value - f->low) / (f->high - f->low) : 0.5;
    return HEIGHT - BELOW - part * (HEIGHT - BELOW - TOP);
}

static void put_frame(page *p, const frame *f, const char *label)
{
    put_piece(p, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", WIDTH, HEIGHT,
              label);
    put_piece(p, "<path class=\"axis\" fill=\"none\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP,
              HEIGHT - BELOW, WIDTH - 8);
    put_piece(p, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.4g</text>\n", LEFT - 6, TOP + 8,
              f->high);
    put_piece(p, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.4g</text>\n", LEFT - 6,
              HEIGHT - BELOW, f->low);
    put_piece(p, "<text x=\"%d\" y=\"%d\">0</text>\n", LEFT, HEIGHT - 8);
    put_piece(p, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">step %.0f</text>\n", WIDTH - 8,
              HEIGHT - 8, f->steps);
}

static frame frame_of(const train_course *c)
{
    frame f = {INFINITY, -INFINITY, (double)(c->steps ? c->steps : 1)};
    for (size_t i = 0; i < course_points(c); i++) {
        f.low = fmin(f.low, course_mean(c, i));
        f.high = fmax(f.high, course_mean(c, i));
    }
    for (size_t i = 0; i < c->n_valid; i++) {
        f.low = fmin(f.low, c->valid[i].loss);
        f.high = fmax(f.high, c->valid[i].loss);
    }
    return f;
}

static void put_losses(page *p, const train_course *c)
{
    frame f = frame_of(c);
    put_piece(p, "<h2>Loss</h2>\n");
    put_frame(p, &f, "loss by step");
    put_piece(p, "<polyline class=\"loss\" points=\"");
    for (size_t i = 0; i < course_points(c); i++) {
        double step = (double)(c->width * (int64_t)i) + (double)c->points[i].n;
        put_piece(p, "%.1f,%.1f ", x_of(&f, step), y_of(&f, course_mean(c, i)));
    }
    put_piece(p, "\"/>\n<polyline class=\"valid\" points=\"");
    for (size_t i = 0; i < c->n_valid; i++)
        put_piece(p, "%.1f,%.1f ", x_of(&f, (double)c->valid[i].step), y_of(&f, c->valid[i].loss));
    put_piece(p, "\"/>\n");
    for (size_t i = 0; i < c->n_valid; i++)
        put_piece(p,
                  "<circle class=\"dot\" r=\"3\" cx=\"%.1f\" cy=\"%.1f\"><title>step %lld: %.4f"
                  "</title></circle>\n",
                  x_of(&f, (double)c->valid[i].step), y_of(&f, c->valid[i].loss),
                  (long long)c->valid[i].step, c->valid[i].loss);
    put_piece(p, "</svg>\n<p class=\"key\">Nats a token; blue: texts that are learned%s.</p>\n",
              c->n_valid ? ", orange: validation" : "");
}

static void put_rates(page *p, const training *r)
{
    frame f = {0, r->schedule.learning_rate, (double)(r->course.steps ? r->course.steps : 1)};
    put_piece(p, "<h2>Learning rate</h2>\n");
    put_frame(p, &f, "learning rate by step");
    put_piece(p, "<polyline class=\"loss\" points=\"");
    for (int i = 0; i <= RATES; i++) {
        int64_t step = (int64_t)((double)i / RATES * (f.steps - 1));
        put_piece(p, "%.1f,%.1f ", x_of(&f, (double)(step + 1)),
                  y_of(&f, qn_schedule_rate(&r->schedule, step)));
    }
    put_piece(p, "\"/></svg>\n");
}

/* ---- the page -------------------------------------------------------------------------------- */

static void put_summary(page *p, const training *r)
{
    char text[PIECE];
    size_t n = course_points(&r->course), since;
    const validation *best = course_best(&r->course, &since);
    put_piece(p, "<h1>quern train</h1>\n<table>\n");
    put_row(p, "model", r->a->init ? r->a->init : r->a->model ? r->a->model : "the built-in model");
    snprintf(text, sizeof text, "%llu, of %llu tokens", (unsigned long long)r->texts,
             (unsigned long long)r->tokens);
    put_row(p, "texts", text);
    snprintf(text, sizeof text, "%llu numbers", (unsigned long long)r->parameters);
    put_row(p, trains_fully(r->a) ? "trained" : "adapter", text);
    snprintf(text, sizeof text, "%lld", (long long)r->course.steps);
    put_row(p, "steps", text);
    if (n) {
        snprintf(text, sizeof text, "%.4f to %.4f", course_mean(&r->course, 0),
                 course_mean(&r->course, n - 1));
        put_row(p, "loss", text);
    }
    if (best) {
        snprintf(text, sizeof text, "%.4f, behind step %lld", best->loss, (long long)best->step);
        put_row(p, "lowest validation loss", text);
    }
    put_piece(p, "</table>\n");
}

static void put_options(page *p, const arguments *a)
{
    size_t at = 0;
    char text[PIECE];
    put_piece(p, "<h2>Options</h2>\n<table>\n");
    for (const option *o; (o = options_next(OF_TRAIN, &at));) {
        const void *place = (const char *)a + o->offset;
        const words *w = place;
        if (!options_given(o, a))
            continue;
        if (o->type == OPTION_STRING)
            put_row(p, o->name, *(const char *const *)place);
        else if (o->type == OPTION_FLAG)
            put_row(p, o->name, "yes");
        else if (o->type == OPTION_WORDS)
            for (size_t i = 0; i < w->n; i++)
                put_row(p, o->name, w->word[i]);
        else
            put_row(p, o->name, options_value(o, a, text, sizeof text));
    }
    put_piece(p, "</table>\n");
}

static void put_samples(page *p, const samples *s, const arguments *a)
{
    if (!a->samples.n)
        return;
    put_piece(p,
              "<h2>Samples</h2>\n<table>\n<tr><th>asked</th><th>before</th><th>after</th></tr>\n");
    for (size_t i = 0; i < a->samples.n; i++) {
        const char *const cells[] = {a->samples.word[i], s->before[i], s->after[i]};
        put_piece(p, "<tr>");
        for (int k = 0; k < 3; k++) {
            put_piece(p, "<td>");
            put_escaped(p, cells[k]);
            put_piece(p, "</td>");
        }
        put_piece(p, "</tr>\n");
    }
    put_piece(p, "</table>\n");
}

qn_status check_report(const arguments *a, qn_error *err)
{
    qn__writer *w = NULL;
    if (qn__writer_open(&w, a->report, 0, QN__WRITER_REPLACE, err) == QN_OK)
        qn__writer_abort(w);
    return err->code;
}

qn_status write_report(const training *r, const samples *s, qn_error *err)
{
    page p = {0};
    p.failed |= !qn__text_puts(&p.text, page_head);
    put_summary(&p, r);
    put_losses(&p, &r->course);
    put_rates(&p, r);
    put_samples(&p, s, r->a);
    put_options(&p, r->a);
    put_piece(&p, "</body></html>\n");
    if (p.failed)
        qn__fail_memory(err, "a report");
    else
        qn__file_write(r->a->report, p.text.data, p.text.n, QN__WRITER_REPLACE, err);
    qn_text_free(&p.text);
    return err->code;
}
