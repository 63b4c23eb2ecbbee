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

// MaxBytes limits the canonical JSON of a job.
const MaxBytes = 512 << 10

// uploadedBytes is how much longer the JSON of a job is, at most, for each of its files that is
// uploaded: it has the digest and the size then.
const uploadedBytes = len(`"digest":"sha256:",`) + 64 + len(`"size":536870912,`)

// CheckSize returns an error if a job has more canonical JSON than a coordinator accepts, also once
// its files are uploaded.
func CheckSize(j *Job) error {
	b, err := Encode(j)
	if err != nil {
		return err
	}
	n := len(b)
	if j.Image != nil && j.Image.Kind == ImageOCIArchive && j.Image.Digest == "" {
		n += uploadedBytes
	}
	for i := range j.Stages {
		for _, f := range j.Stages[i].Files {
			if f.Digest == "" {
				n += uploadedBytes
			}
		}
	}
	if n > MaxBytes {
		return fmt.Errorf("job %q: its description has %s as JSON, at most %s are allowed: put data into files", j.Name, FormatSize(int64(n)), FormatSize(MaxBytes))
	}
	return nil
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
