package jobspec

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Encode gives the canonical JSON of a job: fixed field order, sorted map
// keys, no insignificant space. Equal jobs give equal bytes.
func Encode(j *Job) ([]byte, error) {
	b, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("job %q: %w", j.Name, err)
	}
	return b, nil
}

// Decode reads canonical JSON. Unknown fields, trailing data and a version
// newer than this program knows are errors; it does not validate.
func Decode(b []byte) (*Job, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var j Job
	if err := d.Decode(&j); err != nil {
		return nil, fmt.Errorf("job as JSON: %w", err)
	}
	if d.More() {
		return nil, fmt.Errorf("job as JSON: something follows the job; send one job at a time")
	}
	if j.Version > Version {
		return nil, fmt.Errorf("job %q has schema version %d, this program knows up to %d: upgrade it", j.Name, j.Version, Version)
	}
	return &j, nil
}
