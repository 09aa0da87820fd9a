"""jaxcc: layouts, schedules and fused collectives for parallel JAX programs."""
