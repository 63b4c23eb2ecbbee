package b

import (
	"fmt"

	"example.org/m/a"
)

type actor struct{}

func (actor) Act() {}

func F() {
	u, _ := a.New()
	u.Called()
	_, _, _ = u.Part, a.Fields{Set: 1}, []any{a.Row{}, a.Sent{}, a.Sub{}}
	fmt.Println(u, actor{}, a.Box[int]{}.Get())
}
