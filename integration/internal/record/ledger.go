package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// ReadLedger returns the lines of a ledger, a file with one line of JSON for each entry. It returns
// none if the file does not exist.
func ReadLedger[T any](file string) ([]T, error) {
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var all []T
	for line := range bytes.Lines(text) {
		var e T
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", file, len(all)+1, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// AppendLedger adds a line to a ledger.
func AppendLedger(file string, entry any) error {
	line, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if err2 := f.Close(); err == nil {
		err = err2
	}
	return err
}
