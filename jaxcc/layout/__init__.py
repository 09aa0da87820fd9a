"""What a value is: layouts, traces, rules, the checker and its errors."""
