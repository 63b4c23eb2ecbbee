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
	fmt.Println(u, actor{}, a.Box[int]{}.Get())
}
