/* SPDX-License-Identifier: Apache-2.0
 *
 * Completions for bash, zsh and fish, from the tables of commands and options: so they name what
 * there is. An option whose value is a FILE or a MODEL completes names of files, --device the
 * devices, others nothing.
 */
#include "cli/commands.h"

#include <string.h>

typedef enum value_kind { NO_VALUE, FILES, DIRECTORIES, DEVICES, FREE } value_kind;

static value_kind kind_of(const option *o)
{
    return !o->argument                    ? NO_VALUE
           : !strcmp(o->argument, "FILE")  ? FILES
           : !strcmp(o->argument, "MODEL") ? DIRECTORIES
           : !strcmp(o->name, "device")    ? DEVICES
                                           : FREE;
}

/* Text within single quotes, with a backslash before each of `marked`. */
static void print_quoted(const char *text, const char *marked)
{
    for (; *text; text++)
        if (*text == '\'')
            printf("'\\''");
        else
            printf(strchr(marked, *text) ? "\\%c" : "%c", *text);
}

/* ---- bash --------------------------------------------------------------------------------------
 */

/* "-m|--model|..." of the options of a kind, all commands' together. */
static void print_bash_case(value_kind kind, const char *action)
{
    size_t at = 0;
    bool any = false;
    for (const option *o; (o = options_next(~0u, &at));) {
        if (kind_of(o) != kind)
            continue;
        printf(any ? "|" : "    ");
        if (o->letter)
            printf("-%c|", o->letter);
        printf("--%s", o->name);
        any = true;
    }
    if (any)
        printf(") %s return ;;\n", action);
}

static void print_bash(void)
{
    printf("# bash completion for quern, made by: quern --completions bash\n"
           "_quern() {\n    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
           "options=\n"
           "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        mapfile -t COMPREPLY "
           "< <(compgen -W \"");
    for (size_t i = 0; i < n_commands; i++)
        printf("%s ", commands[i].user.name);
    printf("help --help --version\" -- \"$cur\")\n        return\n    fi\n    case $prev in\n");
    print_bash_case(FILES, "mapfile -t COMPREPLY < <(compgen -f -- \"$cur\");");
    print_bash_case(DIRECTORIES, "mapfile -t COMPREPLY < <(compgen -d -- \"$cur\");");
    print_bash_case(DEVICES,
                    "mapfile -t COMPREPLY < <(compgen -W \"auto cpu cuda:0\" -- \"$cur\");");
    print_bash_case(FREE, "");
    printf("    esac\n    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < n_commands; i++) {
        size_t at = 0;
        printf("    %s) options=\"", commands[i].user.name);
        for (const option *o; (o = options_next(commands[i].user.of, &at));)
            printf("--%s ", o->name);
        printf("--help\" ;;\n");
    }
    printf("    esac\n    case $cur in\n"
           "    -*) mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$cur\") ;;\n"
           "    *) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") ;;\n    esac\n}\n"
           "complete -o filenames -F _quern quern\n");
}

/* ---- zsh ---------------------------------------------------------------------------------------
 */

static void print_zsh_option(const option *o)
{
    static const char *const actions[] = {[NO_VALUE] = "",
                                          [FILES] = "_files",
                                          [DIRECTORIES] = "_files -/",
                                          [DEVICES] = "(auto cpu cuda\\:0)",
                                          [FREE] = " "};
    value_kind kind = kind_of(o);
    const char *repeat = o->type == OPTION_VARIABLE ? "*" : "";
    for (int form = o->letter ? 0 : 1; form < 2; form++) {
        if (form == 0)
            printf("        '(--%s)-%c%s[", o->name, o->letter, kind ? "+" : "");
        else if (o->letter)
            printf("        '(-%c)--%s%s[", o->letter, o->name, kind ? "=" : "");
        else
            printf("        '%s--%s%s[", repeat, o->name, kind ? "=" : "");
        print_quoted(o->help, "[]:\\");
        printf("]");
        if (kind)
            printf(":%s:%s", o->argument, actions[kind]);
        printf("' \\\n");
    }
}

static void print_zsh(void)
{
    printf("#compdef quern\n# zsh completion for quern, made by: quern --completions zsh\n"
           "_quern() {\n    local -a commands\n    commands=(\n");
    for (size_t i = 0; i < n_commands; i++) {
        printf("        '%s:", commands[i].user.name);
        print_quoted(commands[i].summary, ":\\");
        printf("'\n");
    }
    printf("        'help:show help'\n    )\n    if (( CURRENT == 2 )); then\n"
           "        _describe command commands\n        return\n    fi\n"
           "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command "
           "in\n");
    for (size_t i = 0; i < n_commands; i++) {
        size_t at = 0;
        printf("    %s) _arguments -s \\\n", commands[i].user.name);
        for (const option *o; (o = options_next(commands[i].user.of, &at));)
            print_zsh_option(o);
        if (commands[i].user.operand)
            printf("        '1:%s:_files' \\\n", commands[i].user.operand);
        printf("        '(-h --help)'{-h,--help}'[show this help]' ;;\n");
    }
    printf("    help) _describe command commands ;;\n    esac\n}\n_quern \"$@\"\n");
}

/* ---- fish --------------------------------------------------------------------------------------
 */

static void print_fish(void)
{
    static const char *const values[] = {[NO_VALUE] = "",
                                         [FILES] = " -r -F",
                                         [FREE] = " -x",
                                         [DIRECTORIES] = " -x -a '(__fish_complete_directories)'",
                                         [DEVICES] = " -x -a 'auto cpu cuda:0'"};
    printf("# fish completion for quern, made by: quern --completions fish\n");
    for (size_t i = 0; i < n_commands; i++) {
        const command *c = &commands[i];
        size_t at = 0;
        printf("complete -c quern -n __fish_use_subcommand -f -a %s -d '", c->user.name);
        print_quoted(c->summary, "\\");
        printf("'\n");
        if (!c->user.operand)
            printf("complete -c quern -n '__fish_seen_subcommand_from %s' -f\n", c->user.name);
        for (const option *o; (o = options_next(c->user.of, &at));) {
            printf("complete -c quern -n '__fish_seen_subcommand_from %s'", c->user.name);
            if (o->letter)
                printf(" -s %c", o->letter);
            printf(" -l %s%s -d '", o->name, values[kind_of(o)]);
            print_quoted(o->help, "\\");
            printf("'\n");
        }
    }
    printf("complete -c quern -s h -l help -f -d 'show help'\n"
           "complete -c quern -n __fish_use_subcommand -l version -f -d 'show the version'\n");
}

bool help_completions(const char *shell)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (!strcmp(shell, shells[i].name)) {
            shells[i].print();
            return true;
        }
    return false;
}
