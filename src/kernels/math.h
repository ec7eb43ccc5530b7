// Our own elementary functions: fixed polynomials with explicit fma, so that no libm version reaches a compared byte
// (numerics.md section 1). Scalar; the vector kernels give the same bytes lane by lane. Error bounds are stated at each
// definition and tested.
#pragma once

namespace outrider {

float exp32(float x);       // exp(0) = 1 exactly; +0 for x < -87.3; inf on overflow; NaN stays NaN
float silu32(float x);      // x/(1 + exp(-x))
float sigmoid32(float x);   // 1/(1 + exp(-x))
float softplus32(float x);  // x for x > 20, else log1p(exp(x))

double exp64(double x);
double log64(double x);
double log1p64(double x);
double expm164(double x);
double sin64(double x);
double cos64(double x);
void sincos64(double x, double* sin, double* cos);  // the bytes of sin64 and cos64 for one reduction
double pow64(double x, double y);                   // x > 0

}  // namespace outrider
