package predict

import (
	"math"
	"math/rand/v2"
)

// Dimensions of the network: 3DSF section 6.3.
const (
	hidden = 32
	batch  = 64 // examples per training step
)

// layer is a dense layer: out = w in + b, with w row by row, one row per output.
type layer struct {
	in, out int
	w, b    []float32
}

// network is featureCount -> hidden -> hidden -> 1.
type network struct {
	slope   float32 // alpha of eq. 4
	weights []float32
	layers  [3]layer // their parts of weights
}

func newNetwork(slope float64) *network {
	const all = hidden*(featureCount+1) + hidden*(hidden+1) + hidden + 1
	n := &network{slope: float32(slope), weights: make([]float32, all)}
	sizes, rest := [4]int{featureCount, hidden, hidden, 1}, n.weights
	for i := range n.layers {
		in, out := sizes[i], sizes[i+1]
		n.layers[i] = layer{in, out, rest[:in*out], rest[in*out : (in+1)*out]}
		rest = rest[(in+1)*out:]
	}
	return n
}

// randomise draws weights with variance 2/in (He et al. 2015); biases stay 0.
func (n *network) randomise(r *rand.Rand) {
	for i := range n.layers {
		l := &n.layers[i]
		scale := math.Sqrt(2 / float64(l.in))
		for k := range l.w {
			l.w[k] = float32(r.NormFloat64() * scale)
		}
	}
}

// relu is eq. 4 of 3DSF for one value: (1+a)/2 x + (1-a)/2 |x|, which is x for x >= 0
// and a x below; a = 0 gives the plain rectifier.
func relu(x, slope float32) float32 {
	if x >= 0 {
		return x
	}
	return slope * x
}

// buffers holds the activations of a batch, one row per example: 40 kB, for one user of a model at
// a time.
type buffers struct {
	activations [4][]float32          // input, after each hidden layer, output
	gradients   [4][]float32          // of the loss with respect to each
	row         [featureCount]float64 // of the task that is predicted
}

func newBuffers() *buffers {
	b := &buffers{}
	for i, width := range [4]int{featureCount, hidden, hidden, 1} {
		b.activations[i] = make([]float32, batch*width)
		b.gradients[i] = make([]float32, batch*width)
	}
	return b
}

// forward passes the first rows examples of activations[0] through the network to activations[3].
func (n *network) forward(b *buffers, rows int) {
	for i := range n.layers {
		l := &n.layers[i]
		for r := range rows {
			in, out := b.activations[i][r*l.in:(r+1)*l.in], b.activations[i+1][r*l.out:(r+1)*l.out]
			for j := range out {
				out[j] = dot(in, l.w[j*l.in:]) + l.b[j]
				if i < 2 {
					out[j] = relu(out[j], n.slope)
				}
			}
		}
	}
}

// backward takes gradients[3], the gradient of the loss with respect to the outputs,
// and stores the gradient with respect to all weights in g.
func (n *network) backward(g *network, b *buffers, rows int) {
	clear(g.weights)
	for i := len(n.layers) - 1; i >= 0; i-- {
		l, gl := &n.layers[i], &g.layers[i]
		clear(b.gradients[i])
		for r := range rows {
			in, gin := b.activations[i][r*l.in:(r+1)*l.in], b.gradients[i][r*l.in:(r+1)*l.in]
			for j, d := range b.gradients[i+1][r*l.out : (r+1)*l.out] {
				if i < 2 && b.activations[i+1][r*l.out+j] <= 0 { // relu's slope follows from the sign of its value
					d *= n.slope
				}
				gl.b[j] += d
				addTimes(gl.w[j*l.in:], d, in)
				if i > 0 {
					addTimes(gin, d, l.w[j*l.in:(j+1)*l.in])
				}
			}
		}
	}
}

// dot returns the product of two vectors, b being at least as long as a. The conversion, here and
// in addTimes, prevents compilers from fusing the product into the sum, so results are the same on
// all architectures.
func dot(a, b []float32) float32 {
	var s float32
	b = b[:len(a)]
	for i, x := range a {
		s += float32(x * b[i])
	}
	return s
}

func addTimes(sum []float32, f float32, a []float32) {
	sum = sum[:len(a)]
	for i, x := range a {
		sum[i] += float32(f * x)
	}
}

// adam is the optimiser of Kingma and Ba (2015) with its usual constants.
type adam struct {
	m, v  []float32
	steps int
}

const (
	adamRate  = 3e-3
	adamBeta1 = 0.9
	adamBeta2 = 0.999
)

// step moves the weights w against the gradient g; rate scales the step.
func (a *adam) step(w, g []float32, rate float64) {
	a.steps++
	t := float64(a.steps)
	scale := float32(adamRate * rate * math.Sqrt(1-math.Pow(adamBeta2, t)) / (1 - math.Pow(adamBeta1, t)))
	g, m, v := g[:len(w)], a.m[:len(w)], a.v[:len(w)]
	for i := range w {
		m[i] = float32(adamBeta1*m[i]) + float32((1-adamBeta1)*g[i])
		v[i] = float32(adamBeta2*v[i]) + float32((1-adamBeta2)*g[i]*g[i])
		w[i] -= scale * m[i] / (float32(math.Sqrt(float64(v[i]))) + 1e-7)
	}
}
