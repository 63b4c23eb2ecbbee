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
	all, err := ParseLedger[T](text)
	if err != nil {
		return nil, fmt.Errorf("%s, %w", file, err)
	}
	return all, nil
}

// ParseLedger returns the lines of a ledger's text.
func ParseLedger[T any](text []byte) ([]T, error) {
	var all []T
	for line := range bytes.Lines(text) {
		var e T
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(all)+1, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// Ledger returns the text of a ledger with these entries.
func Ledger[T any](entries []T) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, entry := range entries {
		if err := e.Encode(entry); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
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
