package main

import (
	"encoding/json"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxExactInteger is the largest integer up to which every integer is a float64:
// programs such as jq read JSON numbers as those.
const maxExactInteger = 1 << 53

// withNumbers decodes the JSON of a message as protojson wrote it, with proto
// names, and turns the 64-bit numbers, which protojson writes as text, into
// numbers where every reader keeps them exact.
func withNumbers(text []byte, d protoreflect.MessageDescriptor) (any, error) {
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	return messageNumbers(v, d), nil
}

func messageNumbers(v any, d protoreflect.MessageDescriptor) any {
	fields, ok := v.(map[string]any)
	if !ok {
		return v // null, or a well-known type that is written as text
	}
	for name, x := range fields {
		f := d.Fields().ByName(protoreflect.Name(name))
		if f == nil {
			continue
		}
		switch {
		case f.IsMap():
			entries, _ := x.(map[string]any)
			for k, e := range entries {
				entries[k] = valueNumbers(e, f.MapValue())
			}
		case f.IsList():
			list, _ := x.([]any)
			for i, e := range list {
				list[i] = valueNumbers(e, f)
			}
		default:
			fields[name] = valueNumbers(x, f)
		}
	}
	return fields
}

func valueNumbers(v any, f protoreflect.FieldDescriptor) any {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return messageNumbers(v, f.Message())
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		s, ok := v.(string)
		if !ok {
			return v
		}
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && -maxExactInteger <= n && n <= maxExactInteger {
			return json.Number(s)
		}
	}
	return v
}
