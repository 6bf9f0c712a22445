/* The body of narrow_product.c in one instruction set, which the macros defined before each inclusion are written in.

   Lanes are outputs: a panel of them is multiplied with one state after the other, so nothing is ever summed across
   lanes. Weights of a panel lie in the order in which they are needed. */

#define VECTORS (PANEL / LANES)

/* `rows` and `form` are constants wherever this is inlined. */
TARGET static inline __attribute__((always_inline)) void NAME(sum_panel)(
    const int rows, const enum form form, const float *states, const void *weights, const uint16_t *grid, float *sums,
    ptrdiff_t width)
{
    FLOATS sum[ROWS_AT_ONCE * VECTORS], scale[VECTORS], offset[VECTORS], weight[VECTORS];
    UNROLLED for (int i = 0; i < rows * VECTORS; i++) sum[i] = ZERO();
    for (ptrdiff_t start = 0; start < width; start += BLOCK) {
        const ptrdiff_t stop = start + BLOCK < width ? start + BLOCK : width;
        if (form == CODES) {
            UNROLLED for (int i = 0; i < VECTORS; i++) {
                scale[i] = OF_FLOAT16(grid + i * LANES);
                offset[i] = OF_FLOAT16(grid + PANEL + i * LANES);
            }
            grid += 2 * PANEL;
        }
        _Pragma("GCC unroll 4") for (ptrdiff_t at = start; at < stop; at++) {
            UNROLLED for (int i = 0; i < VECTORS; i++) {
                const ptrdiff_t from = at * PANEL + i * LANES;
                if (form == CODES)
                    weight[i] = MULTIPLY_ADD(OF_CODES((const int8_t *)weights + from), scale[i], offset[i]);
                else if (form == BFLOAT16)
                    weight[i] = OF_BFLOAT16((const uint16_t *)weights + from);
                else
                    weight[i] = OF_FLOAT16((const uint16_t *)weights + from);
            }
            UNROLLED for (int row = 0; row < rows; row++) {
                const FLOATS state = EVERYWHERE(states[row * width + at]);
                UNROLLED for (int i = 0; i < VECTORS; i++)
                    sum[row * VECTORS + i] = MULTIPLY_ADD(weight[i], state, sum[row * VECTORS + i]);
            }
        }
    }
    UNROLLED for (int i = 0; i < rows * VECTORS; i++) STORE(sums + i * LANES, sum[i]);
}

/* Panel by panel, so that weights come from memory once, however many rows there are. */
TARGET static inline __attribute__((always_inline)) void NAME(product_in)(
    const enum form form, const struct product *now)
{
    const ptrdiff_t panel_bytes = now->width * PANEL * (form == CODES ? 1 : 2);
    const ptrdiff_t panel_grids = form == CODES ? now->width / BLOCK * 2 * PANEL : 0;
    const char *weights = now->weights;
    const uint16_t *grids = now->grids;
    float sums[ROWS_AT_ONCE * PANEL];
    for (ptrdiff_t output = 0; output < now->outputs; output += PANEL) {
        const ptrdiff_t outputs = now->outputs - output < PANEL ? now->outputs - output : PANEL;
        for (ptrdiff_t row = 0; row < now->rows; row += ROWS_AT_ONCE) {
            const int rows = (int)(now->rows - row < ROWS_AT_ONCE ? now->rows - row : ROWS_AT_ONCE);
            const float *states = now->states + row * now->width;
            switch (rows) {
#define CASE(rows) \
    case rows: NAME(sum_panel)(rows, form, states, weights, grids, sums, now->width); break;
            CASE(1) CASE(2) CASE(3) CASE(4)
#if ROWS_AT_ONCE > 4
            CASE(5) CASE(6) CASE(7) CASE(8)
#endif
#undef CASE
            }
            for (int i = 0; i < rows; i++)
                memcpy(now->result + (row + i) * now->outputs + output, sums + i * PANEL, outputs * sizeof(float));
        }
        weights += panel_bytes;
        grids += panel_grids;
    }
}

TARGET static void NAME(product)(enum form form, const struct product *now)
{
    switch (form) {
    case CODES: NAME(product_in)(CODES, now); break;
    case BFLOAT16: NAME(product_in)(BFLOAT16, now); break;
    case FLOAT16: NAME(product_in)(FLOAT16, now); break;
    }
}

#undef ISA
#undef TARGET
#undef LANES
#undef VECTORS
#undef ROWS_AT_ONCE
#undef FLOATS
#undef ZERO
#undef EVERYWHERE
#undef MULTIPLY_ADD
#undef STORE
#undef OF_CODES
#undef OF_BFLOAT16
#undef OF_FLOAT16
