"""Which operations treat every element by itself, so that they may run on slices."""

POINTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp
    clz convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1
    floor ge gt integer_pow is_finite le lgamma log log1p logistic lt max min mul name ne neg
    nextafter not or population_count pow reduce_precision rem round rsqrt select_n shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh
    xor
    """.split()
)
