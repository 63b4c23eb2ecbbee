package predict

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// File format of a Model, little-endian, version 1:
//
//	8 bytes   "DRVRMLP\n"
//	uint16    version
//	uint16    featureCount
//	uint16    hidden
//	uint16    use: 0, Ridge or MLP
//	2 x int64 number of training tasks, number of held-out tasks
//	float64s  3 errors of the Report; slope; means, deviations; target's mean,
//	          deviation; ridge weights; for ridge and network: records, quantiles
//	float32s  weights and biases, layer by layer
//	uint32    CRC-32 (IEEE) of all preceding bytes
const (
	modelMagic   = "DRVRMLP\n"
	modelVersion = 1
)

// maxWeight is the largest absolute value of every number in a model file except the
// counts.
const maxWeight = 1e6

// visitNumbers calls number for each float64 of the file and weights for each sequence
// of float32, in file order. It is the only place that defines that order.
func (m *currentModel) visitNumbers(number func(*float64), weights func([]float32)) {
	r := &m.report
	slope := float64(m.net.slope)
	for _, v := range []*float64{&r.networkError, &r.ridgeError, &r.fallbackError, &slope} {
		number(v)
	}
	m.net.slope = float32(slope)
	for i := range m.mean {
		number(&m.mean[i])
	}
	for i := range m.scale {
		number(&m.scale[i])
	}
	number(&m.yMean)
	number(&m.yScale)
	for i := range m.ridge {
		number(&m.ridge[i])
	}
	for _, d := range m.errors {
		records := float64(d.records)
		number(&records)
		d.records = int(records)
		for i := range d.logs {
			number(&d.logs[i])
		}
	}
	for i := range m.net.layers {
		weights(m.net.layers[i].w)
		weights(m.net.layers[i].b)
	}
}

// clone copies everything that visitNumbers may change.
func (m *currentModel) clone() *currentModel {
	c := *m
	c.net = &network{slope: m.net.slope, layers: m.net.layers}
	for i, d := range m.errors {
		copied := *d
		c.errors[i] = &copied
	}
	return &c
}

// MarshalBinary returns the model in the format above, about 7 kB. The error is always
// nil.
func (m *currentModel) MarshalBinary() ([]byte, error) {
	le := binary.LittleEndian
	out := []byte(modelMagic)
	for _, v := range []uint16{modelVersion, featureCount, hidden, uint16(m.report.use)} {
		out = le.AppendUint16(out, v)
	}
	out = le.AppendUint64(out, uint64(m.report.trained))
	out = le.AppendUint64(out, uint64(m.report.heldOut))
	m.clone().visitNumbers(
		func(v *float64) { out = le.AppendUint64(out, math.Float64bits(*v)) },
		func(w []float32) {
			for _, v := range w {
				out = le.AppendUint32(out, math.Float32bits(v))
			}
		})
	return le.AppendUint32(out, crc32.ChecksumIEEE(out)), nil
}

// modelSize is the length of a file of version 1.
var modelSize = func() int {
	m := &currentModel{net: newNetwork(0), errors: [2]*distribution{{}, {}}}
	b, err := m.MarshalBinary()
	if err != nil {
		panic(err)
	}
	return len(b)
}()

// loadModel reads the output of MarshalBinary. It never panics, whatever the bytes.
// Errors: errModel, naming the fault; the caller then starts without a model, which is
// learnt again from history.
func loadModel(data []byte) (*currentModel, error) {
	bad := func(format string, a ...any) (*currentModel, error) {
		return nil, fmt.Errorf("%w: %s", errModel, fmt.Sprintf(format, a...))
	}
	le := binary.LittleEndian
	head := len(modelMagic)
	if len(data) < head+2 || string(data[:head]) != modelMagic {
		return bad("it does not begin with the magic bytes")
	}
	if v := le.Uint16(data[head:]); v != modelVersion {
		return bad("version %d, this program reads %d", v, modelVersion)
	}
	if len(data) != modelSize {
		return bad("%d bytes, want %d", len(data), modelSize)
	}
	if body := data[:len(data)-4]; crc32.ChecksumIEEE(body) != le.Uint32(data[len(body):]) {
		return bad("checksum mismatch")
	}
	if f, h := le.Uint16(data[head+2:]), le.Uint16(data[head+4:]); f != featureCount || h != hidden {
		return bad("%d features and layers of %d, want %d and %d", f, h, featureCount, hidden)
	}
	m := &currentModel{net: newNetwork(0), errors: [2]*distribution{{}, {}}}
	m.report.use = Source(le.Uint16(data[head+6:]))
	if u := m.report.use; u != 0 && u != Ridge && u != MLP {
		return bad("unknown use %v", u)
	}
	trained, heldOut := le.Uint64(data[head+8:]), le.Uint64(data[head+16:])
	if trained > 1e9 || heldOut > 1e9 {
		return bad("%d training and %d held-out tasks are out of range", trained, heldOut)
	}
	m.report.trained, m.report.heldOut = int(trained), int(heldOut)
	if !m.readNumbers(data[head+24:]) {
		return bad("a number is NaN or out of range")
	}
	return m, nil
}

// readNumbers reads the numbers and reports whether all are in range.
func (m *currentModel) readNumbers(data []byte) bool {
	le := binary.LittleEndian
	ok := true
	m.visitNumbers(
		func(v *float64) {
			*v = math.Float64frombits(le.Uint64(data))
			data = data[8:]
			if !(math.Abs(*v) <= maxWeight) {
				*v, ok = 0, false
			}
		},
		func(w []float32) {
			for i := range w {
				w[i] = math.Float32frombits(le.Uint32(data))
				data = data[4:]
				ok = ok && math.Abs(float64(w[i])) <= maxWeight
			}
		})
	for _, s := range append(m.scale[:], m.yScale) {
		ok = ok && s > 0
	}
	for _, d := range m.errors {
		ok = ok && d.records > 0
		for i := 1; i < knots; i++ {
			ok = ok && d.logs[i-1] <= d.logs[i]
		}
	}
	return ok && m.net.slope >= 0 && m.net.slope <= 1
}
