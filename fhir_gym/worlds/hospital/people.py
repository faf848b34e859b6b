"""Generate patients: names of people and places, demographics, addresses and Patient resources."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.seeded_random import SeededRandom
from fhir_gym.worlds.hospital.times import NOW, age, years_before


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace("\n", " ").split(",") if part.strip())


FAMILY = _words("""
Adams, Aguilar, Ahmed, Allen, Alvarez, Anderson, Andersson, Bailey, Baker, Banerjee, Bell, Bennett, Bianchi, Brooks,
Brown, Bryant, Burke, Butler, Campbell, Carter, Castillo, Chang, Chaudhary, Chavez, Chen, Clark, Coleman, Collins,
Cook, Cooper, Cox, Cruz, D'Amico, D'Angelo, Davis, de la Cruz, Delgado, Diaz, Dubois, Edwards, Ellis, Evans,
Fernández, Fischer, Fisher, Flores, Ford, Foster, Freeman, García, Garcia-Lopez, Gibson, Gomez, González, Graham,
Grant, Gray, Green, Griffin, Gupta, Hall, Hamilton, Harris, Hassan, Hayes, Henderson, Hernandez, Hill, Hoang,
Howard, Hughes, Hussein, Ivanova, Jackson, James, Jenkins, Jensen, Jiménez, Johnson, Jones, Jordan, Kaplan, Kelly,
Kennedy, Khan, Kim, King, Knight, Kowalski, Kumar, Larsen, Lee, Lefèvre, Lewis, Liu, Long, Lopez, Marshall, Martin,
Martínez, Mason, McDonald, McKenzie, Mehta, Mendoza, Meyer, Miller, Mitchell, Moore, Morales, Morgan, Morris,
Müller, Murphy, Murray, Myers, Nakamura, Nelson, Nguyen, Novak, Núñez, O'Brien, O'Connor, O'Neill, Okafor, Olson,
Ortiz, Owens, Park, Parker, Patel, Patterson, Pereira, Perez, Perry, Peters, Petrov, Phillips, Powell, Price,
Ramirez, Ramos, Reed, Reyes, Reynolds, Richardson, Rivera, Roberts, Robinson, Rodriguez, Rogers, Romero, Rossi,
Russell, Ryan, Sánchez, Sanders, Santos, Schmidt, Schneider, Scott, Shah, Sharma, Silva, Simmons, Singh, Smith,
Smith-Jones, Snyder, Sokolov, Stevens, Stewart, Sullivan, Suzuki, Tanaka, Taylor, Thomas, Thompson, Torres, Tran,
Tucker, Turner, van der Berg, Vargas, Vasquez, Wagner, Walker, Wallace, Wang, Ward, Warren, Watson, Weber, Webb,
Wells, West, White, Williams, Wilson, Wong, Wood, Wright, Yamamoto, Yang, Yilmaz, Young, Zhang, Zimmermann, Żukowski
""")

FEMALE = _words("""
Abigail, Aisha, Alice, Amanda, Amy, Ana, Andrea, Angela, Anita, Anna, Anne-Marie, Ashley, Barbara, Beatriz, Brenda,
Carmen, Carol, Catherine, Charlotte, Chloé, Christina, Claire, Cynthia, Deborah, Diana, Donna, Dorothy, Elena,
Elizabeth, Emily, Emma, Esther, Evelyn, Fatima, Frances, Grace, Hannah, Heather, Helen, Inés, Irene, Isabel,
Jacqueline, Jane, Janet, Jennifer, Jessica, Joan, Joyce, Judith, Julia, Karen, Katherine, Kimberly, Laura, Lauren,
Leila, Linda, Lisa, Lucía, Madison, Margaret, Maria, María José, Marilyn, Martha, Mary, Megan, Mei, Melissa,
Michelle, Nancy, Natalie, Nicole, Noemí, Olivia, Pamela, Patricia, Priya, Rachel, Rebecca, Renée, Rosa, Ruth,
Samantha, Sandra, Sara, Sarah, Sharon, Shirley, Sofia, Sophie, Stephanie, Susan, Teresa, Theresa, Thi, Valentina,
Victoria, Virginia, Wei, Yasmin, Yuki, Zoë
""")

MALE = _words("""
Aaron, Adam, Ahmed, Alan, Albert, Alejandro, Alexander, Ali, Andrés, Andrew, Anthony, Antonio, Arjun, Arthur,
Austin, Benjamin, Brandon, Brian, Bruce, Carl, Carlos, Charles, Christian, Christopher, Daniel, David, Dennis,
Diego, Donald, Douglas, Dylan, Edward, Eric, Ethan, Eugene, Fernando, François, Frank, Gabriel, Gary, George,
Gerald, Gregory, Harold, Henry, Hiroshi, Ibrahim, Jack, Jacob, James, Jason, Javier, Jean-Luc, Jeffrey, Jeremy,
Jerry, Jesse, Joel, John, Jonathan, José, Joseph, Joshua, Juan, Justin, Keith, Kenneth, Kevin, Kwame, Kyle, Larry,
Lawrence, Liam, Louis, Luis, Mark, Martin, Matthew, Michael, Miguel, Min-jun, Mohammed, Nathan, Nicholas, Noah,
Oscar, Pablo, Patrick, Paul, Pedro, Peter, Philip, Ralph, Raúl, Raymond, Richard, Robert, Roger, Ronald, Roy,
Russell, Ryan, Samuel, Scott, Sean, Sergei, Seán, Stephen, Steven, Søren, Terry, Thomas, Timothy, Tyler, Victor,
Vincent, Walter, Wayne, William, Zachary
""")

STREETS = _words("""
Alder Way, Ash Lane, Bay Street, Beacon Street, Birch Road, Bridge Street, Cedar Avenue, Chapel Street, Cherry Lane,
Chestnut Street, Church Street, Clearview Drive, College Avenue, Commonwealth Avenue, Dogwood Court, Elm Street,
Fern Road, Forest Drive, Garden Street, Grove Street, Harbor View, Hawthorne Road, Hickory Lane, High Street,
Highland Avenue, Hillcrest Road, Holly Court, Jackson Street, Jefferson Avenue, Juniper Way, King Street, Lake
Drive, Laurel Lane, Liberty Street, Lincoln Avenue, Locust Street, Magnolia Avenue, Main Street, Maple Avenue,
Market Street, Martin Luther King Jr. Boulevard, Meadow Lane, Mill Road, Mulberry Street, Oak Street, Orchard Road,
Park Avenue, Pine Street, Pleasant Street, Poplar Drive, Prospect Street, Railroad Avenue, Ridge Road, River Street,
School Street, South Street, Spring Street, Spruce Street, St. Mary's Road, State Street, Summit Avenue, Sunset
Boulevard, Sycamore Lane, Union Street, Valley Road, Walnut Street, Washington Street, Willow Lane
""")

# (city, state, first postal code, area code, weight)
CITIES = (
    ("Boston", "MA", 2108, "617", 30),
    ("Cambridge", "MA", 2138, "617", 15),
    ("Somerville", "MA", 2143, "617", 8),
    ("Brookline", "MA", 2445, "617", 7),
    ("Quincy", "MA", 2169, "617", 8),
    ("Newton", "MA", 2458, "617", 7),
    ("Worcester", "MA", 1602, "508", 6),
    ("Framingham", "MA", 1701, "508", 5),
    ("Lowell", "MA", 1850, "978", 5),
    ("Salem", "MA", 1970, "978", 3),
    ("Providence", "RI", 2903, "401", 3),
    ("Nashua", "NH", 3060, "603", 3),
)


Ages = tuple[tuple[tuple[int, int], int], ...]
"""Age spans in full years, each with a weight."""

_AGES: Ages = (((1, 17), 12), ((18, 39), 22), ((40, 64), 34), ((65, 79), 22), ((80, 96), 10))
_NAMESAKES = 3

# Names that some software handles badly. With any seed, about three of twenty patients have one of these names.
_AWKWARD = {
    3: tuple(name for name in FAMILY if "'" in name),
    9: tuple(name for name in FAMILY if "-" in name),
    15: tuple(name for name in FAMILY if not name.isascii()),
}


@dataclass(frozen=True)
class Demographics:
    """Demographics of a patient, as used by all generators.

    Attributes:
        mrn: Medical record number (`S` and seven digits), also the resource id.
        family: Family name.
        given: Given names, at least one.
        sex: "male" or "female".
        born: Date of birth.
        home: Home address, as a FHIR Address.
        phone: Home telephone number.
    """

    mrn: str
    family: str
    given: tuple[str, ...]
    sex: str
    born: date
    home: dict[str, Any]
    phone: str

    @property
    def name(self) -> str:
        """The full name."""
        return " ".join((*self.given, self.family))

    def age(self, on: date | None = None) -> int:
        """Return the age in full years on a day; the default is the world's current date."""
        return age(self.born, on or NOW.date())


def given_name(rng: SeededRandom, sex: str) -> str:
    """Draw a given name."""
    return rng.one(FEMALE if sex == "female" else MALE)


def address(rng: SeededRandom, *, use: str = "home") -> dict[str, Any]:
    """Draw a postal address in the hospital's region."""
    city, state, first_code, _, _ = rng.weighted([(place, place[4]) for place in CITIES])
    line = [f"{rng.between(1, 2999)} {rng.one(STREETS)}"]
    if rng.percent(30):
        line[0] += f" Apt. {rng.between(1, 60)}"
    code = f"{first_code + rng.between(0, 9):05d}"
    return {"use": use, "line": line, "city": city, "state": state, "postalCode": code, "country": "US"}


def telephone(rng: SeededRandom, city: str) -> str:
    """Draw a fictional telephone number (exchange 555) with the city's area code."""
    area = next(place[3] for place in CITIES if place[0] == city)
    return f"{area}-555-{rng.between(100, 9999):04d}"


def cohort(
    seed: int, count: int, *, ages: Ages = _AGES, women: int = 50, purpose: str = "person"
) -> tuple[Demographics, ...]:
    """Draw the demographics of all patients. A few patients share a full name but not the date of birth.

    Args:
        seed: Seed of the world.
        count: Number of patients, from 1 to 1,000,000.
        ages: Age spans with weights.
        women: Percentage of women.
        purpose: Name of the random stream; each name gives different people.
    """
    people: list[Demographics] = []
    mrns: set[int] = set()
    for number in range(count):
        rng = SeededRandom(seed, purpose, number)
        mrn = rng.between(1_000_000, 9_999_999)
        while mrn in mrns:
            mrn = rng.between(1_000_000, 9_999_999)
        mrns.add(mrn)
        sex = "female" if (number + 1) * women // 100 > number * women // 100 else "male"
        person = _person(rng, f"S{mrn}", sex, _AWKWARD.get(number % 20, FAMILY), ages)
        if number >= 2 * _NAMESAKES and number % max(7, count // _NAMESAKES) == 0:
            twin = next(other for other in reversed(people[: number - 2 * _NAMESAKES + 1]) if other.sex == sex)
            person = Demographics(
                person.mrn, twin.family, twin.given, person.sex, person.born, person.home, person.phone
            )
        people.append(person)
    return tuple(people)


def _person(rng: SeededRandom, mrn: str, sex: str, families: tuple[str, ...], ages: Ages) -> Demographics:
    low, high = rng.weighted(ages)
    born = years_before(NOW.date(), rng.between(low, high)) - timedelta(days=rng.between(0, 364))
    givens = [given_name(rng, sex)]
    if rng.percent(25):
        givens.append(rng.one([name for name in (FEMALE if sex == "female" else MALE) if name != givens[0]]))
    home = address(rng)
    return Demographics(mrn, rng.one(families), tuple(givens), sex, born, home, telephone(rng, home["city"]))


def mrn_identifier(mrn: str) -> dict[str, Any]:
    """Build the Identifier of a medical record number."""
    kind = r4.hl7_concept("v2-0203", "MR", "Medical Record Number")
    return {"use": "usual", "type": kind, "value": mrn}


def patient_resource(person: Demographics, *, hospital: str | None = None, doctor: str | None = None) -> Resource:
    """Build the Patient."""
    rng = SeededRandom("contact", person.mrn)
    telecom = [{"system": "phone", "value": person.phone, "use": "home"}]
    if rng.percent(50):
        telecom.append({"system": "phone", "value": telephone(rng, person.home["city"]), "use": "mobile"})
    patient: Resource = {
        "resourceType": "Patient",
        "id": person.mrn,
        "identifier": [mrn_identifier(person.mrn)],
        "active": True,
        "name": [{"use": "official", "family": person.family, "given": list(person.given)}],
        "telecom": telecom,
        "gender": person.sex,
        "birthDate": person.born.isoformat(),
        "address": [person.home],
    }
    if doctor:
        patient["generalPractitioner"] = [r4.ref("Practitioner", doctor)]
    if hospital:
        patient["managingOrganization"] = r4.ref("Organization", hospital)
    return patient
