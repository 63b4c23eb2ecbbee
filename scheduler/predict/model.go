package predict

import "math"

// trainedModel is a trained network with its ridge baseline and the standardisation of their
// inputs. It is immutable.
type trainedModel struct {
	use Source // MLP, Ridge, or 0 if neither beat the fallback on held-out tasks by two standard errors

	net         *network
	ridge       [featureCount + 1]float64 // weights of the standardised features, then the constant
	mean, scale [featureCount]float64     // of the transformed features
	yMean       float64                   // of log seconds
	yScale      float64
}

const maxDeviations = 5 // limits the standardised features, and thereby the models' extrapolation

func (m *trainedModel) standardise(x *Features, row *[featureCount]float64) {
	logTransform(x, row)
	for i := range row {
		row[i] = min(max((row[i]-m.mean[i])/m.scale[i], -maxDeviations), maxDeviations)
	}
}

func (m *trainedModel) seconds(y float64) float64 {
	return math.Exp(min(max(m.yMean+m.yScale*y, -10), math.Log(maxSeconds)))
}

// predictNetwork returns the run time in seconds of one task by the network. The features must be
// in range. Cost: about 1,400 multiplications. It does not allocate.
func (m *trainedModel) predictNetwork(b *buffers, x *Features) float64 {
	m.standardise(x, &b.row)
	for i, v := range b.row {
		b.activations[0][i] = float32(v)
	}
	m.net.forward(b, 1)
	return m.seconds(float64(b.activations[3][0]))
}

func (m *trainedModel) predictRidge(b *buffers, x *Features) float64 {
	m.standardise(x, &b.row)
	y := m.ridge[featureCount]
	for i, v := range b.row {
		y += float64(m.ridge[i] * v)
	}
	return m.seconds(y)
}

// fitRidge solves (X^T X + penalty n I) w = X^T y for rows of standardised features and
// one constant, by Cholesky decomposition. The constant is not penalised.
func fitRidge(x, y []float32, penalty float64) (w [featureCount + 1]float64) {
	const d = featureCount + 1
	var a [d][d]float64
	var b [d]float64
	row := [d]float64{featureCount: 1}
	for r := range y {
		for i := range featureCount {
			row[i] = float64(x[r*featureCount+i])
		}
		for i := range d {
			for j := range i + 1 {
				a[i][j] += float64(row[i] * row[j])
			}
			b[i] += float64(row[i] * float64(y[r]))
		}
	}
	for i := range featureCount {
		a[i][i] += penalty*float64(len(y)) + 1e-9
	}
	for i := range d { // a becomes its lower factor
		for j := range i + 1 {
			s := a[i][j]
			for k := range j {
				s -= float64(a[i][k] * a[j][k])
			}
			if i == j {
				a[i][i] = math.Sqrt(max(s, 1e-12))
			} else {
				a[i][j] = s / a[j][j]
			}
		}
	}
	for i := range d {
		for k := range i {
			b[i] -= float64(a[i][k] * b[k])
		}
		b[i] /= a[i][i]
	}
	for i := d - 1; i >= 0; i-- {
		for k := i + 1; k < d; k++ {
			b[i] -= float64(a[k][i] * w[k])
		}
		w[i] = b[i] / a[i][i]
	}
	return w
}
