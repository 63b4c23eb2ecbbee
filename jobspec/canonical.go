package jobspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Encode returns the canonical JSON of a job: fixed field order, sorted map keys,
// no insignificant space. Equal jobs have equal bytes.
func Encode(j *Job) ([]byte, error) {
	b, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("job %q: %w", j.Name, err)
	}
	return b, nil
}

// Decode decodes canonical JSON. Unknown fields, trailing data and a newer schema
// version are errors. It does not validate the job.
func Decode(b []byte) (*Job, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var j Job
	if err := d.Decode(&j); err != nil {
		return nil, fmt.Errorf("job JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("job JSON: data after the job; send one job at a time")
	}
	if j.Version > Version {
		return nil, fmt.Errorf("job %q has schema version %d, this program knows up to %d: upgrade it", j.Name, j.Version, Version)
	}
	return &j, nil
}

// DecodeStored reads canonical JSON that was accepted before, by this version or
// another one: unknown fields are passed over. It does not validate.
func DecodeStored(b []byte) (*Job, error) {
	var j Job
	if err := json.Unmarshal(b, &j); err != nil {
		return nil, fmt.Errorf("stored job as JSON: %w", err)
	}
	return &j, nil
}
