package report

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"strconv"
)

// textColumns are the columns of all tables whose values are texts, even if one looks like a number.
var textColumns = map[string]bool{"name": true, "tag": true, "tenant": true, "stage": true, "node": true, "outcome": true, "locality": true}

// WriteJSONLines converts a table written by this package from CSV to JSON lines: an object for
// each row, with the columns as keys in their order. Values are numbers, true or false, texts, or
// null for an empty field.
func WriteJSONLines(w io.Writer, table io.Reader) error {
	in := csv.NewReader(table)
	in.ReuseRecord = true
	header, err := in.Read()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	keys := make([]string, len(header))
	for i, name := range header {
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		keys[i] = string(key)
	}
	text := make([]bool, len(header))
	for i, name := range header {
		text[i] = textColumns[name]
	}
	out := bufio.NewWriter(w)
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			return out.Flush()
		}
		if err != nil {
			return err
		}
		for i, value := range row {
			separator := byte(',')
			if i == 0 {
				separator = '{'
			}
			v, err := jsonValue(value, text[i])
			if err != nil {
				return err
			}
			_ = out.WriteByte(separator) // Flush returns the error
			_, _ = out.WriteString(keys[i])
			_ = out.WriteByte(':')
			_, _ = out.Write(v)
		}
		_, _ = out.WriteString("}\n")
	}
}

// jsonValue converts a field of a table.
func jsonValue(field string, text bool) ([]byte, error) {
	switch {
	case field == "":
		return []byte("null"), nil
	case text:
		return json.Marshal(field)
	case field == "true" || field == "false":
		return []byte(field), nil
	}
	if _, err := strconv.ParseFloat(field, 64); err != nil || !json.Valid([]byte(field)) {
		return json.Marshal(field)
	}
	return []byte(field), nil
}
