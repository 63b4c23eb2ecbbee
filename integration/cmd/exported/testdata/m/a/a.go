// Package a shows more than package b uses.
package a

import _ "embed"

//go:embed page.tmpl
var page string

type Used struct{ Part Shown }

type Fields struct {
	Set, Inside int
	Template    int
	*Embedded
}

type Embedded struct{ N int }

// Row is read by its tags, Sent by an encoder, and with it Sub.
type Row struct {
	Name string `json:"name"`
	Size int
}

type Sent struct{ Sub []Sub }

type Sub struct{ N int }

func encode(v any) { _ = v }

func send() {
	encode([]*Sent{})
	_ = Row{}
}

type Shown struct{}

type Unused struct{ Hidden }

type Hidden struct{}

type Kind int

const (
	First Kind = iota
	Second
)

const Limit = 1

var Global = page

func New() (*Used, Kind) { return &Used{}, First }

func Alone() { helper() }

func helper() {
	send()
	_, _, _ = Limit, Global, Unused{}
}

func (*Used) Called()        {}
func (*Used) Lonely()        {}
func (*Used) String() string { return "" }
func (*Used) InTemplate()    {}
func (*Used) Tested()        {}
func (*Used) Unwrap() error  { return nil }

// Implemented is implemented by a type of package b.
type Implemented interface{ Act() }

// Asks is implemented here alone.
type Asks interface{ Lonelier() }

func (*Used) Lonelier() {}

func act(i Implemented, a Asks) { i.Act(); a.Lonelier() }

var _ = act

type Box[T any] struct{ v T }

func (b Box[T]) Get() T { return b.v }
func (b Box[T]) Put()   {}
