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
	slope  float32 // alpha of eq. 4
	layers [3]layer
}

func newNetwork(slope float64) *network {
	n := &network{slope: float32(slope)}
	sizes := [4]int{featureCount, hidden, hidden, 1}
	for i := range n.layers {
		in, out := sizes[i], sizes[i+1]
		n.layers[i] = layer{in, out, make([]float32, in*out), make([]float32, out)}
	}
	return n
}

// randomise draws weights with variance 2/in (He et al. 2015) and sets biases to 0.
func (n *network) randomise(r *rand.Rand) {
	for i := range n.layers {
		l := &n.layers[i]
		scale := math.Sqrt(2 / float64(l.in))
		for k := range l.w {
			l.w[k] = float32(r.NormFloat64() * scale)
		}
		clear(l.b)
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

// buffers holds the activations of a batch row by row, one row per example: 60 kB. Concurrent users of
// a model need their own.
type buffers struct {
	activations  [4][]float32          // input, after each hidden layer, output
	gradients    [4][]float32          // of the loss with respect to each
	weightsT     []float32             // a layer's weights, transposed
	activationsT []float32             // activations, transposed
	gradientsT   []float32             // gradients, transposed
	row          [featureCount]float64 // of the task that is predicted
}

func newBuffers() *buffers {
	b := &buffers{weightsT: make([]float32, hidden*hidden), activationsT: make([]float32, hidden*batch), gradientsT: make([]float32, hidden*batch)}
	for i, width := range [4]int{featureCount, hidden, hidden, 1} {
		b.activations[i] = make([]float32, batch*width)
		b.gradients[i] = make([]float32, batch*width)
	}
	return b
}

// forward passes the first rows examples of activations[0] through the network to
// activations[3].
func (n *network) forward(b *buffers, rows int) {
	for i := range n.layers {
		l := &n.layers[i]
		out := b.activations[i+1][:rows*l.out]
		multiply(out, b.activations[i], l.w, rows, l.out, l.in)
		for r := 0; r < len(out); r += l.out {
			row := out[r : r+l.out]
			for j, bias := range l.b {
				row[j] += bias
			}
		}
		if i < 2 {
			for k, x := range out {
				out[k] = relu(x, n.slope)
			}
		}
	}
}

// backward takes gradients[3], the gradient of the loss with respect to the outputs,
// and stores the gradient with respect to all weights in g.
func (n *network) backward(g *network, b *buffers, rows int) {
	for i := len(n.layers) - 1; i >= 0; i-- {
		l, gl := &n.layers[i], &g.layers[i]
		out := b.gradients[i+1][:rows*l.out]
		if i < 2 { // relu's slope follows from the sign of its value
			for k, a := range b.activations[i+1][:rows*l.out] {
				if a <= 0 {
					out[k] *= n.slope
				}
			}
		}
		clear(gl.b)
		for r := 0; r < len(out); r += l.out {
			for j := range gl.b {
				gl.b[j] += out[r+j]
			}
		}
		transpose(b.gradientsT, out, rows, l.out)
		transpose(b.activationsT, b.activations[i], rows, l.in)
		multiply(gl.w, b.gradientsT, b.activationsT, l.out, l.in, rows)
		if i > 0 {
			transpose(b.weightsT, l.w, l.out, l.in)
			multiply(b.gradients[i], out, b.weightsT, rows, l.in, l.out)
		}
	}
}

// transpose stores in out the transpose of the rows x cols matrix a.
func transpose(out, a []float32, rows, cols int) {
	for r := range rows {
		for c, x := range a[r*cols : (r+1)*cols] {
			out[c*rows+r] = x
		}
	}
}

// multiply is out = a b^T: out[i][j] is the dot product of row i of a and row j of b,
// both of length k. Blocks of two rows by four keep eight sums in registers. The
// conversions prevent compilers from fusing the product into the sum, so results are
// the same on all architectures.
func multiply(out, a, b []float32, rows, cols, k int) {
	i := 0
	for ; i+2 <= rows; i += 2 {
		a0, a1 := a[i*k:(i+1)*k], a[(i+1)*k:(i+2)*k]
		o0, o1 := out[i*cols:(i+1)*cols], out[(i+1)*cols:(i+2)*cols]
		j := 0
		for ; j+4 <= cols; j += 4 {
			b0, b1 := b[j*k:(j+1)*k], b[(j+1)*k:(j+2)*k]
			b2, b3 := b[(j+2)*k:(j+3)*k], b[(j+3)*k:(j+4)*k]
			a1, b0, b1, b2, b3 := a1[:len(a0)], b0[:len(a0)], b1[:len(a0)], b2[:len(a0)], b3[:len(a0)]
			var s00, s01, s02, s03, s10, s11, s12, s13 float32
			for x, p := range a0 {
				q := a1[x]
				y0, y1, y2, y3 := b0[x], b1[x], b2[x], b3[x]
				s00 += float32(p * y0)
				s01 += float32(p * y1)
				s02 += float32(p * y2)
				s03 += float32(p * y3)
				s10 += float32(q * y0)
				s11 += float32(q * y1)
				s12 += float32(q * y2)
				s13 += float32(q * y3)
			}
			o0[j], o0[j+1], o0[j+2], o0[j+3] = s00, s01, s02, s03
			o1[j], o1[j+1], o1[j+2], o1[j+3] = s10, s11, s12, s13
		}
		for ; j < cols; j++ {
			o0[j], o1[j] = dot(a0, b[j*k:(j+1)*k]), dot(a1, b[j*k:(j+1)*k])
		}
	}
	for ; i < rows; i++ {
		for j := range cols {
			out[i*cols+j] = dot(a[i*k:(i+1)*k], b[j*k:(j+1)*k])
		}
	}
}

func dot(a, b []float32) float32 {
	var s float32
	b = b[:len(a)]
	for i, x := range a {
		s += float32(x * b[i])
	}
	return s
}

// adam is the optimiser of Kingma and Ba (2015) with its usual constants.
type adam struct {
	m, v  *network
	steps int
}

const (
	adamRate  = 3e-3
	adamBeta1 = 0.9
	adamBeta2 = 0.999
)

func newAdam() *adam { return &adam{m: newNetwork(0), v: newNetwork(0)} }

// step moves the weights of n against the gradient g; rate scales the step.
func (a *adam) step(n, g *network, rate float64) {
	a.steps++
	t := float64(a.steps)
	scale := float32(adamRate * rate * math.Sqrt(1-math.Pow(adamBeta2, t)) / (1 - math.Pow(adamBeta1, t)))
	for i := range n.layers {
		adamUpdate(n.layers[i].w, g.layers[i].w, a.m.layers[i].w, a.v.layers[i].w, scale)
		adamUpdate(n.layers[i].b, g.layers[i].b, a.m.layers[i].b, a.v.layers[i].b, scale)
	}
}

func adamUpdate(w, g, m, v []float32, scale float32) {
	g, m, v = g[:len(w)], m[:len(w)], v[:len(w)]
	for i := range w {
		m[i] = float32(adamBeta1*m[i]) + float32((1-adamBeta1)*g[i])
		v[i] = float32(adamBeta2*v[i]) + float32((1-adamBeta2)*g[i]*g[i])
		w[i] -= scale * m[i] / (float32(math.Sqrt(float64(v[i]))) + 1e-7)
	}
}
