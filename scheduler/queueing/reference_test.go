package queueing

import (
	"math"
	"math/big"
)

// The judge computes everything from the sums of the papers, term by term, with 320
// bits (96 digits) and no transformed formulas.

const judgeBits = 320

func num(x float64) *big.Float { return new(big.Float).SetPrec(judgeBits).SetFloat64(x) }
func fresh() *big.Float        { return new(big.Float).SetPrec(judgeBits) }
func add(a, b *big.Float) *big.Float {
	return fresh().Add(a, b)
}
func sub(a, b *big.Float) *big.Float { return fresh().Sub(a, b) }
func mul(a, b *big.Float) *big.Float { return fresh().Mul(a, b) }
func quo(a, b *big.Float) *big.Float { return fresh().Quo(a, b) }

// bigExp is e^x by halving the argument and the power series.
func bigExp(x *big.Float) *big.Float {
	halvings := max(0, x.MantExp(nil)+20)
	r := fresh().SetMantExp(fresh().Set(x), -halvings)
	sum, term := num(1), num(1)
	for k := 1; k < 60; k++ {
		term = quo(mul(term, r), num(float64(k)))
		sum = add(sum, term)
	}
	for i := 0; i < halvings; i++ {
		sum = mul(sum, sum)
	}
	return sum
}

// bigLog is log x for x > 0 by Newton's method on bigExp.
func bigLog(x *big.Float) *big.Float {
	m := fresh()
	e := x.MantExp(m)
	f, _ := m.Float64()
	y := num(math.Log(f) + float64(e)*math.Ln2)
	for i := 0; i < 4; i++ { // y += x e^-y - 1, doubling the digits
		y = add(y, sub(mul(x, bigExp(fresh().Neg(y))), num(1)))
	}
	return y
}

type judge struct {
	n          int
	lambda, mu *big.Float
	rho1, idle *big.Float // lambda/mu and 1 - rho
	p          []*big.Float
	c          *big.Float
}

// newJudge takes lambda and mu as exact.
func newJudge(n int, lambda, mu *big.Float) *judge {
	j := &judge{n: n, lambda: lambda, mu: mu, rho1: quo(lambda, mu)}
	j.idle = sub(num(1), quo(j.rho1, num(float64(n))))
	sum, term := fresh(), num(1)
	for k := 0; k < n; k++ { // eq. 10
		j.p = append(j.p, term)
		sum = add(sum, term)
		term = quo(mul(term, j.rho1), num(float64(k+1)))
	}
	j.p = append(j.p, term)
	p0 := quo(num(1), add(sum, quo(term, j.idle)))
	for k := range j.p {
		j.p[k] = mul(j.p[k], p0)
	}
	j.c = quo(j.p[n], j.idle) // eq. 20
	return j
}

// pk is p_k of eq. 10 for any k.
func (j *judge) pk(k int) *big.Float {
	if k <= j.n {
		return j.p[k]
	}
	p := j.p[j.n]
	rho := sub(num(1), j.idle)
	for i := j.n; i < k; i++ {
		p = mul(p, rho)
	}
	return p
}

func (j *judge) theta() *big.Float { return sub(mul(num(float64(j.n)), j.mu), j.lambda) }

func (j *judge) waitTail(x float64) *big.Float {
	return mul(j.c, bigExp(mul(j.theta(), num(-x))))
}

// sojournTail is eq. 32 as printed where it is not singular. At 96 digits the
// cancellation around the singular point does not matter.
func (j *judge) sojournTail(x float64) *big.Float {
	d := sub(num(float64(j.n-1)), j.rho1)
	em := bigExp(mul(j.mu, num(-x)))
	if d.Sign() == 0 {
		return mul(em, add(num(1), mul(j.c, mul(j.mu, num(x)))))
	}
	both := sub(em, bigExp(mul(j.theta(), num(-x))))
	return add(em, quo(mul(j.c, both), d))
}

// sojournDensity is eq. 29 with 30, written out.
func (j *judge) sojournDensity(x float64) *big.Float {
	d := sub(num(float64(j.n-1)), j.rho1)
	em := bigExp(mul(j.mu, num(-x)))
	first := mul(mul(sub(num(1), j.c), j.mu), em)
	if d.Sign() == 0 {
		return add(first, mul(mul(j.c, mul(j.mu, j.mu)), mul(num(x), em)))
	}
	both := quo(sub(em, bigExp(mul(j.theta(), num(-x)))), d)
	return add(first, mul(mul(j.c, j.theta()), both))
}

// relative returns |got/want - 1|, or 0 if both are 0 as float64.
func relative(got float64, want *big.Float) float64 {
	w, _ := want.Float64()
	if math.Abs(w) < math.SmallestNonzeroFloat64*(1<<53) {
		if math.Abs(got) < 1e-300 {
			return 0
		}
		return math.Inf(1)
	}
	r, _ := sub(quo(num(got), want), num(1)).Float64()
	return math.Abs(r)
}
