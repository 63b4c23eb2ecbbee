package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// The scripts call the binary for the candidates, so they never become outdated.
// A word without candidates is completed as a file.
const bashCompletion = `_drover() {
  local IFS=$'\n'
  COMPREPLY=($("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _drover drover
`

const zshCompletion = `#compdef drover
_drover() {
  local -a opts
  opts=("${(@f)$(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n "${opts[*]}" ]] && compadd -a opts || _files
}
if [ "$funcstack[1]" = "_drover" ]; then
  _drover "$@" # from a folder of the function path this file is the function
else
  compdef _drover drover
fi
`

const fishCompletion = `function __drover_complete
  set -l words (drover __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)
  if set -q words[1]
    string join \n -- $words
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c drover -f -a '(__drover_complete)'
`

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:        "completion",
		Usage:       "shell completion script",
		ArgsUsage:   "bash|zsh|fish",
		Description: "bash: source <(drover completion bash)    zsh: source <(drover completion zsh)    fish: drover completion fish | source",
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "bash|zsh|fish")
			if err != nil {
				return err
			}
			switch a[0] {
			case "bash":
				_, err = fmt.Fprint(c.App.Writer, bashCompletion)
			case "zsh":
				_, err = fmt.Fprint(c.App.Writer, zshCompletion)
			case "fish":
				_, err = fmt.Fprint(c.App.Writer, fishCompletion)
			default:
				return usageErrorf("shell %q: want bash, zsh or fish", a[0])
			}
			return err
		},
	}
}
