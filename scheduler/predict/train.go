package predict

import (
	"math"
	"math/rand/v2"
)

type record struct {
	x       Features
	seconds float64
}

// round is one round of training over a snapshot of the history.
type round struct {
	model      *trainedModel
	grad       *network
	adam       adam
	buffers    *buffers
	random     *rand.Rand
	x, y       []float32 // standardised rows to fit
	order      []int32
	heldOut    []record
	epoch, pos int
	epochs     int
}

// newRound splits the history, standardises it and fits the ridge regression. O(history), 1 ms for
// 10,000 tasks.
func newRound(history []record, c *Config, number uint64) *round {
	random := rand.New(rand.NewPCG(c.seed, number))
	perm := random.Perm(len(history))
	fit := len(history) * 4 / 5
	m := &trainedModel{net: newNetwork(c.slope)}
	r := &round{
		model: m, grad: newNetwork(0), buffers: newBuffers(), random: random,
		x: make([]float32, fit*featureCount), y: make([]float32, fit), order: make([]int32, fit), epochs: c.epochs,
	}
	for _, i := range perm[fit:] {
		r.heldOut = append(r.heldOut, history[i])
	}
	rows := make([][featureCount]float64, fit)
	logs := make([]float64, fit)
	for k, i := range perm[:fit] {
		logTransform(&history[i].x, &rows[k])
		logs[k] = math.Log(history[i].seconds)
		r.order[k] = int32(k)
	}
	for i := range featureCount {
		m.mean[i], m.scale[i] = meanAndDeviation(fit, func(k int) float64 { return rows[k][i] })
	}
	m.yMean, m.yScale = meanAndDeviation(fit, func(k int) float64 { return logs[k] })
	for k := range rows {
		for i, v := range rows[k] {
			r.x[k*featureCount+i] = float32((v - m.mean[i]) / m.scale[i])
		}
		r.y[k] = float32((logs[k] - m.yMean) / m.yScale)
	}
	m.ridge = fitRidge(r.x, r.y, c.ridgePenalty)
	m.net.randomise(random)
	r.adam.m, r.adam.v = make([]float32, len(m.net.weights)), make([]float32, len(m.net.weights))
	return r
}

// meanAndDeviation returns the mean and the standard deviation of n values, 1 for a constant, which
// is then 0 when standardised.
func meanAndDeviation(n int, value func(k int) float64) (mean, deviation float64) {
	square := 0.0
	for k := range n {
		mean += value(k) / float64(n)
	}
	for k := range n {
		d := value(k) - mean
		square += float64(d*d) / float64(n)
	}
	if square < 1e-18 {
		return mean, 1
	}
	return mean, math.Sqrt(square)
}

// train trains on at most budget tasks, rounded up to a batch, and reports whether all epochs are
// done.
func (r *round) train(budget int) (done bool) {
	for budget > 0 && r.epoch < r.epochs {
		if r.pos == 0 {
			r.random.Shuffle(len(r.order), func(i, j int) { r.order[i], r.order[j] = r.order[j], r.order[i] })
		}
		rows := min(batch, len(r.order)-r.pos)
		r.trainBatch(r.order[r.pos : r.pos+rows])
		budget -= rows
		if r.pos += rows; r.pos == len(r.order) {
			r.pos = 0
			r.epoch++
		}
	}
	return r.epoch >= r.epochs
}

// trainBatch is one step of Adam on the mean squared error of a batch, with a rate that falls
// linearly to a twentieth.
func (r *round) trainBatch(rows []int32) {
	n := len(rows)
	for k, i := range rows {
		copy(r.buffers.activations[0][k*featureCount:(k+1)*featureCount], r.x[int(i)*featureCount:])
	}
	r.model.net.forward(r.buffers, n)
	for k, i := range rows {
		r.buffers.gradients[3][k] = (r.buffers.activations[3][k] - r.y[i]) * (2 / float32(n))
	}
	r.model.net.backward(r.grad, r.buffers, n)
	progress := (float64(r.epoch) + float64(r.pos)/float64(len(r.order))) / float64(r.epochs)
	r.adam.step(r.model.net.weights, r.grad.weights, 1-0.95*progress)
}

// evaluate compares network, ridge regression and fallback on the held-out tasks. Cost: O(held-out
// tasks).
func (r *round) evaluate() *trainedModel {
	m := r.model
	var network, ridge, fallback []float64 // log errors
	for k := range r.heldOut {
		h := &r.heldOut[k]
		network = append(network, math.Log(h.seconds/m.predictNetwork(r.buffers, &h.x)))
		ridge = append(ridge, math.Log(h.seconds/m.predictRidge(r.buffers, &h.x)))
		fallback = append(fallback, math.Log(h.seconds/h.x[stageSeconds]))
	}
	switch {
	case beats(network, ridge) && beats(network, fallback):
		m.use = MLP
	case beats(ridge, fallback):
		m.use = Ridge
	}
	return m
}

// beats reports whether the squared errors a are below b by two standard errors of their paired
// difference.
func beats(a, b []float64) bool {
	n := float64(len(a))
	var mean, square float64
	for i := range a {
		mean += (b[i]*b[i] - a[i]*a[i]) / n
	}
	for i := range a {
		d := b[i]*b[i] - a[i]*a[i] - mean
		square += d * d
	}
	return mean > 0 && mean > 2*math.Sqrt(square/n/(n-1))
}
