package a

func OnlyInTests() { new(Used).Lonely(); Alone() }
