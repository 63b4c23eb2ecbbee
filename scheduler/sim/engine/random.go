package engine

import "math"

// The kinds of draws: part of a draw's key, so that draws of different kinds are independent.
const (
	drawReplica uint64 = iota + 1
	drawStraggler
	drawSpread
	drawEstimate
	drawFailure
	drawRepair
)

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hash returns a random number determined by a seed and a key. It does not allocate.
func hash(seed uint64, key ...uint64) uint64 {
	h := mix(seed)
	for _, k := range key {
		h = mix(h ^ k)
	}
	return h
}

// unit maps a random number to (0, 1).
func unit(h uint64) float64 { return (float64(h>>11) + 0.5) / (1 << 53) }

// exponential returns an exponential draw with mean 1.
func exponential(h uint64) float64 { return -math.Log(unit(h)) }

// normal returns a normal draw with mean 0 and standard deviation 1.
func normal(h uint64) float64 { return math.Sqrt2 * math.Erfinv(2*unit(h)-1) }

// lognormal returns a lognormal draw with mean 1; sigma is the standard deviation of its logarithm.
func lognormal(h uint64, sigma float64) float64 {
	if sigma == 0 {
		return 1
	}
	return math.Exp(sigma*normal(h) - sigma*sigma/2)
}
