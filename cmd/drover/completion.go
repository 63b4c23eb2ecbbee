package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// Both scripts ask the binary itself, so they never go stale.
const bashCompletion = `_drover() {
  local cur words
  cur="${COMP_WORDS[COMP_CWORD]}"
  words=("${COMP_WORDS[@]:0:COMP_CWORD}")
  if [[ "$cur" == -* ]]; then
    COMPREPLY=($(compgen -W "$("${words[@]}" "$cur" --generate-bash-completion 2>/dev/null)" -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur"))
  fi
}
complete -o bashdefault -o default -F _drover drover
`

const zshCompletion = `#compdef drover
_drover() {
  local -a opts
  opts=("${(@f)$(${words[@]:0:#words[@]-1} --generate-bash-completion 2>/dev/null)}")
  _describe 'values' opts || _files
}
compdef _drover drover
`

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:        "completion",
		Usage:       "a script that completes commands in your shell",
		ArgsUsage:   "bash|zsh",
		Description: "bash: source <(drover completion bash)    zsh: source <(drover completion zsh)",
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1, "bash|zsh")
			if err != nil {
				return err
			}
			switch a[0] {
			case "bash":
				_, err = fmt.Fprint(c.App.Writer, bashCompletion)
			case "zsh":
				_, err = fmt.Fprint(c.App.Writer, zshCompletion)
			default:
				return usage("shell %q: want bash or zsh", a[0])
			}
			return err
		},
	}
}
